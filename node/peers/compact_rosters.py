"""Rosters as gossip carries them: the `Ready` in them are named, not repeated.

A roster has the signed `Ready` of every member in it, and nearly every peer that it goes to has
heard these before. So a message names each by the first bytes of its digest, and the receiver puts
the roster together from its statement store, byte for byte: the organiser's signature is over the
whole roster. A `Ready` that is still on its way completes the roster when it comes. If it does not,
the receiver compares its statement store with the organiser's, which brings the roster as a whole.
The idea is that of compact blocks (Bitcoin, BIP 152).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec
import trio

from gossamer.protocol import limits
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import PeerId
from gossamer.protocol.policy.statement_store import TAG_BYTES, StatementStore
from gossamer.protocol.wire.statements import Ready, Roster, Signed, encode_statement

LACKING_MAX = 16
"""Rosters that wait for a `Ready`, of all organisers together: rings at work in a divided swarm.
Comparisons of statements bring those for which there is no room."""


LACKING_SECONDS = 0.25
"""Time for a `Ready` that a roster names to come on its own: it left its author before the
organiser had it. Then the organiser is asked."""


class CompactRoster(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A signed roster, with tags in the place of its members' `Ready`."""

    author: str
    signature: bytes
    round: int
    head: bytes
    attempt: int
    codec: str
    chunk_elements: int
    tags: bytes
    """`TAG_BYTES` for each member, in ring order."""


class _Lacking(NamedTuple):
    """A roster that cannot be put together yet."""

    bringer: PeerId
    compact: CompactRoster


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CompactRoster)


def encode_compact(signed: Signed, roster: Roster) -> bytes:
    """A sealed roster as a message."""
    return _encoder.encode(
        CompactRoster(
            signed.author,
            signed.signature,
            roster.round,
            roster.head,
            roster.attempt,
            roster.codec,
            roster.chunk_elements,
            b"".join(member.digest[:TAG_BYTES] for member in roster.members),
        )
    )


def decode_compact(data: bytes) -> CompactRoster:
    """A message whose values are not checked, except for the number of members.

    Raises:
        MalformedError: it is no roster of `Ready` that are named.
    """
    try:
        compact = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedError(f"not a compact roster: {error}") from error
    num_members, rest = divmod(len(compact.tags), TAG_BYTES)
    if rest or not 1 <= num_members <= limits.RING_MEMBERS_MAX:
        raise MalformedError(f"compact roster with tags of {len(compact.tags)} bytes")
    return compact


class CompactRosters:
    """Puts rosters together, and keeps those that lack a `Ready` until it comes."""

    def __init__(
        self,
        statement_store: StatementStore,
        is_good: Callable[[Signed], bool],
        ask: Callable[[PeerId], Awaitable[None]],
    ) -> None:
        """
        Args:
            is_good: whether the signature of an envelope is its author's.
            ask: takes from a peer the statements that are missing here, in bounded time.
        """
        self._store = statement_store
        self._is_good = is_good
        self._ask = ask
        self._lacking: dict[bytes, _Lacking] = {}
        """By the organiser's signature."""
        self._send, self._receive = trio.open_memory_channel[_Lacking](LACKING_MAX)

    async def run(self) -> None:
        """Asks for what completes the rosters that wait, until cancelled."""
        async with trio.open_nursery() as nursery:
            async for lacking in self._receive:
                nursery.start_soon(self._complete, lacking)

    async def _complete(self, lacking: _Lacking) -> None:
        await trio.sleep(LACKING_SECONDS)
        if lacking.compact.signature in self._lacking:
            await self._ask(lacking.bringer)
            self._lacking.pop(lacking.compact.signature, None)

    def put_together(self, compact: CompactRoster) -> Signed | None:
        """Returns the signed roster; None: a `Ready` in it is not here, or is not the very one that
        the organiser has. The author of a `Ready` can sign several."""
        found = self._store.find(Ready)
        tags = compact.tags
        members = [
            found.get(tags[start : start + TAG_BYTES]) for start in range(0, len(tags), TAG_BYTES)
        ]
        if None in members:
            return None
        roster = Roster(
            compact.round,
            compact.head,
            compact.attempt,
            tuple(member for member in members if member is not None),
            compact.codec,
            compact.chunk_elements,
        )
        signed = Signed(compact.author, encode_statement(roster), compact.signature)
        return signed if self._is_good(signed) else None

    def wait(self, bringer: PeerId, compact: CompactRoster) -> None:
        """Keeps a roster that cannot be put together yet, if there is room."""
        if compact.signature in self._lacking or len(self._lacking) >= LACKING_MAX:
            return
        lacking = _Lacking(bringer, compact)
        try:
            self._send.send_nowait(lacking)
        except trio.WouldBlock:
            return
        self._lacking[compact.signature] = lacking

    def completed(self) -> list[tuple[PeerId, Signed]]:
        """Takes out the rosters that can be put together now, each with its bringer."""
        done: list[tuple[PeerId, Signed]] = []
        for bringer, compact in [*self._lacking.values()]:
            signed = self.put_together(compact)
            if signed is not None:
                del self._lacking[compact.signature]
                done.append((bringer, signed))
        return done
