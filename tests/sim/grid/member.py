"""One member of a grid: a ring of its row and a ring of its column, each the product's machine.

The members of a ring of R x C stand in R rows and C columns. A chunk belongs to one column.

1. The partial sum of a chunk walks each row, and ends at that row's member of the chunk's column:
   the row's machine wants the average finished there.
2. These members, a column, reduce the sums of their rows in a ring of their own. A row's sum is
   what its member adds there.
3. The column's average is what each of them answers to its row, in which it walks as ever.

So a member sends its vector nearly twice whatever the size of the grid, and a sum or an average
makes 2 C + 2 R hops in the place of 2 R C.

If a row's member of a column is out, the next one that has to finish the chunk in that row is in
another column. It takes no part in the chunk's column. It asks a member of that column for the
average. The row's parts of these chunks are in the average only if the member that is out had added
them before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gossamer.protocol.ids import Digest, PeerId, digest_of
from gossamer.protocol.rounds.actions import Contribute, FinishAverage, RingAction, Send
from gossamer.protocol.rounds.inventory import ArrivedSum, Average, Payload
from gossamer.protocol.rounds.ring.ring import RingReduce

RANK_BYTES = 8


class Sum(msgspec.Struct, frozen=True):
    """What a payload stands for: the sum of some members' parts."""

    total: int
    masks: tuple[tuple[int, int], ...]
    """(row, mask of its members) of all rows in the sum, sorted by row."""

    def plus(self, other: Sum) -> Sum:
        """The sum of both.

        Raises:
            ValueError: a member is in both.
        """
        masks = dict(self.masks)
        for row, mask in other.masks:
            if masks.get(row, 0) & mask:
                raise ValueError(f"a part of row {row} twice")
            masks[row] = masks.get(row, 0) | mask
        return Sum(self.total + other.total, tuple(sorted(masks.items())))

    @property
    def num_members(self) -> int:
        """The number of members in the sum."""
        return sum(mask.bit_count() for _, mask in self.masks)

    def encode(self) -> bytes:
        """Returns the payload."""
        masks = [(row, f"{mask:x}") for row, mask in self.masks]  # of any number of columns
        return msgspec.msgpack.encode((f"{self.total:x}", masks))


def decode(payload: Payload) -> Sum:
    """The sum in a payload."""
    total, masks = msgspec.msgpack.decode(payload, type=tuple[str, list[tuple[int, str]]])
    return Sum(int(total, 16), tuple((row, int(mask, 16)) for row, mask in masks))


@dataclass(frozen=True)
class Grid:
    """The places of all members, and the chunks."""

    num_rows: int
    num_columns: int
    num_chunks: int

    def peer(self, row: int, column: int) -> PeerId:
        """The member at a place."""
        return PeerId(f"{row}.{column}")

    def row(self, row: int) -> list[PeerId]:
        """The members of a row, in ring order."""
        return [self.peer(row, column) for column in range(self.num_columns)]

    def column(self, column: int) -> list[PeerId]:
        """The members of a column, in ring order."""
        return [self.peer(row, column) for row in range(self.num_rows)]

    def column_of(self, chunk: int) -> int:
        """The column that a chunk belongs to."""
        return chunk % self.num_columns

    def chunks_of(self, column: int) -> range:
        """The chunks of a column."""
        return range(column, self.num_chunks, self.num_columns)


@dataclass(frozen=True)
class Message:
    """What one member sends to another."""

    kind: str
    """"row" and "column": a ring's; "ask" and "answer": for and with a column's average."""
    chunk: int
    send: Send | None = None
    payload: Payload = field(default=b"", repr=False)


def _unsigned(_chunk: int, _mask: int, _digest: Digest) -> bytes:
    return b""


def rank_of(payload: Payload) -> Digest:
    """Stands for the digest of an average in a row: of two averages of a column, the better one
    comes first, as the column's lattice has it."""
    num_members = decode(payload).num_members
    return Digest((2**32 - num_members).to_bytes(RANK_BYTES, "big") + digest_of(payload))


class GridMember:
    """One member's rings. Messages go out by `send`."""

    def __init__(
        self,
        grid: Grid,
        row: int,
        column: int,
        part: Callable[[int], int],
        send: Callable[[PeerId, Message], None],
    ) -> None:
        """`part`: this member's part of each chunk."""
        self.grid, self.row_number, self.column_number = grid, row, column
        self.me = grid.peer(row, column)
        self._part, self._send = part, send
        starters = [(chunk + 1) % grid.num_columns for chunk in range(grid.num_columns)]
        num_own = len(grid.chunks_of(column))
        self.row = RingReduce(
            grid.row(row), self.me, grid.num_chunks, starters, _unsigned, _unsigned
        )
        self.column = RingReduce(
            grid.column(column), self.me, num_own, range(grid.num_rows), _unsigned, _unsigned
        )
        self._row_sums: dict[int, Payload] = {}
        """What this member has to finish in its row, by chunk."""
        self._waiting: dict[int, Contribute] = {}
        """What the column wants added before the row's sum is here, by chunk."""
        self._told: dict[int, Payload] = {}
        """The average of the column that the row has got, by chunk."""
        self._askers: dict[int, set[PeerId]] = {}
        self._asked: dict[int, PeerId] = {}
        self._out: set[PeerId] = set()

    @property
    def is_complete(self) -> bool:
        """Whether every average is here."""
        return self.row.is_complete

    def start(self) -> None:
        """The ring begins."""
        self._do_column(self.column.start())
        self._do_row(self.row.start())

    def received(self, sender: PeerId, message: Message) -> None:
        """A message came."""
        chunk = message.chunk
        if message.kind == "ask":
            self._askers.setdefault(chunk, set()).add(sender)
            self._answer(chunk)
        elif message.kind == "answer":
            self._tell_row(chunk, message.payload)
        elif message.send is not None:
            ring = self.row if message.kind == "row" else self.column
            actions = _take(ring, sender, message.send)
            (self._do_row if message.kind == "row" else self._do_column)(actions)

    def removed(self, peer: PeerId) -> None:
        """A member is out of the ring for good."""
        self._out.add(peer)
        if peer in self.grid.column(self.column_number):
            self._do_column(self.column.member_removed(peer))
        if peer in self.grid.row(self.row_number):
            self._do_row(self.row.member_removed(peer))
        for chunk, asked in list(self._asked.items()):
            if asked == peer:  # another one may have a better average, or get one
                self._ask(chunk)

    def average_of(self, chunk: int) -> Sum | None:
        """The average of a chunk, as far as it is here."""
        payload = self.row.average_of(chunk)
        return None if payload is None else decode(payload)

    # The row

    def _do_row(self, actions: list[RingAction]) -> None:
        for action in actions:
            match action:
                case Contribute():
                    self._do_row(self._add_part(action))
                case FinishAverage():
                    self._finish_row(action)
                case Send():
                    self._send(action.peer, Message("row", action.chunk, action))

    def _add_part(self, action: Contribute) -> list[RingAction]:
        bit = 1 << self.column_number
        mine = Sum(self._part(action.chunk), ((self.row_number, bit),))
        whole = mine if action.payload is None else decode(action.payload).plus(mine)
        return self.row.contributed(action.chunk, whole.encode())

    def _finish_row(self, action: FinishAverage) -> None:
        chunk = action.chunk
        self._row_sums[chunk] = action.payload
        if self.grid.column_of(chunk) != self.column_number:
            self._ask(chunk)
            return
        waiting = self._waiting.pop(chunk, None)
        if waiting is not None:
            self._do_column(self._add_row(waiting))
        average = self.column.average_of(chunk // self.grid.num_columns)
        if average is not None:
            self._tell_row(chunk, average)

    def _tell_row(self, chunk: int, payload: Payload) -> None:
        if chunk not in self._row_sums:
            return  # another member finishes this chunk in the row
        told = self._told.get(chunk)
        if told == payload or (told is not None and rank_of(told) <= rank_of(payload)):
            return
        self._told[chunk] = payload
        if told is None:
            self._do_row(self.row.average_finished(chunk, payload, rank_of(payload)))
            return
        # A better average of the column. The row takes it as it would from another finisher.
        position = self.column_number
        mask = (1 << self.grid.num_columns) - 1
        average = Average(mask, rank_of(payload), position, payload)
        self._do_row(self.row.average_received(self.me, chunk, average))

    # The column

    def _do_column(self, actions: list[RingAction]) -> None:
        for action in actions:
            match action:
                case Contribute():
                    chunk = self._whole_number(action.chunk)
                    if chunk in self._row_sums:
                        self._do_column(self._add_row(action))
                    else:
                        self._waiting[chunk] = action
                case FinishAverage():
                    digest = digest_of(action.payload)
                    self._do_column(
                        self.column.average_finished(action.chunk, action.payload, digest)
                    )
                case Send():
                    self._send(action.peer, Message("column", action.chunk, action))
        for number, chunk in enumerate(self.grid.chunks_of(self.column_number)):
            average = self.column.average_of(number)
            if average is not None and average != self._told.get(chunk):
                self._tell_row(chunk, average)
                self._answer(chunk)

    def _add_row(self, action: Contribute) -> list[RingAction]:
        mine = decode(self._row_sums[self._whole_number(action.chunk)])
        whole = mine if action.payload is None else decode(action.payload).plus(mine)
        return self.column.contributed(action.chunk, whole.encode())

    def _whole_number(self, own_chunk: int) -> int:
        return self.grid.chunks_of(self.column_number)[own_chunk]

    # Other columns

    def _ask(self, chunk: int) -> None:
        column = self.grid.column(self.grid.column_of(chunk))
        after = column[self.row_number + 1 :] + column[: self.row_number]
        living = [peer for peer in after if peer not in self._out]
        if living:
            self._asked[chunk] = living[0]
            self._send(living[0], Message("ask", chunk))

    def _answer(self, chunk: int) -> None:
        average = self.column.average_of(chunk // self.grid.num_columns)
        if average is not None:
            for peer in sorted(self._askers.get(chunk, ())):
                self._send(peer, Message("answer", chunk, payload=average))


def _take(ring: RingReduce, sender: PeerId, send: Send) -> list[RingAction]:
    if send.finisher is None:
        return ring.partial_sum_received(send.chunk, ArrivedSum(sender, send.mask, send.payload))
    assert send.digest is not None
    average = Average(send.mask, send.digest, send.finisher, send.payload)
    return ring.average_received(sender, send.chunk, average)
