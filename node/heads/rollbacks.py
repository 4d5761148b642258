"""The rounds that were taken back, on this node's disk and among its peers.

`gossamer rollback` leaves a signed statement in the state directory of the founder's node, or of a
keeper's. A statement of a keeper is a proposal and travels at once, until more than half of the
keepers have signed the same (`policy.heads.rollback_signers`). The node whose own statement takes
the rounds back goes back first, and then gossip brings the statement to the others. Each node keeps
all of them for the rest of the run:

    rollbacks/    one file for each, the signed statement (`wire.statements.Rollback`), and a hidden
                  empty one for each of this node's own that peers know

A head is void if a round on the way to it was taken back. `heads` has what follows from that.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import structlog
import trio

from gossamer.node.base.disk_health import (
    DiskError,
    DiskHealth,
    make_folder_of_orders,
    remove_quietly,
    write_atomically,
)
from gossamer.node.base.threads import RunInThread
from gossamer.node.base.ticks import DISK_LOOKS, sleep_to_tick
from gossamer.node.network.identity import verify
from gossamer.node.peers.statements.gossip import Gossip
from gossamer.node.storage.bounded_file import open_file
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.policy.heads.rollback_signers import RollbackSigners
from gossamer.protocol.wire.envelopes import decode_signed, open_signed
from gossamer.protocol.wire.statements import Rollback, Signed

ROLLBACKS_MAX = 256
"""Statements of one signer in the life of a run. One that needs more should found a new run."""

LOOK_SECONDS = 1.0
"""Interval of the looks at what was heard, and at what this node has done about it."""

ORDER_SECONDS = 120.0
"""Time for the signer's node to rebuild the state of an order, as for any other work of a disk and
a thread on a large model."""

_FILE_BYTES_MAX = 1024
"""A signed rollback has some 250 bytes."""

log = structlog.get_logger("node")


class RollbackNode(Protocol):
    """The node, as its rollbacks see it."""

    @property
    def me(self) -> PeerId:
        """This node's peer id."""

    def notify(self) -> None:
        """There is a rollback that this node has to follow."""

    @property
    def has_gone_back(self) -> bool:
        """Returns whether this node is at no round that was taken back."""

    @property
    def spares_line(self) -> bool:
        """Returns whether this node fetches no state now."""


class RollbackFiles:
    """The rollbacks in one state directory."""

    def __init__(self, root: Path, run_id: Digest, signers: RollbackSigners) -> None:
        self._path = root / "rollbacks"
        self._run_id = run_id
        self.signers = signers

    def write(self, signed: Signed) -> None:
        """Keeps a rollback. Raises DiskError."""
        try:
            make_folder_of_orders(self._path)
        except OSError as error:
            raise DiskError(str(error)) from error
        write_atomically(self._path / signed.digest.hex(), to_msgpack(signed), is_order=True)

    def remove(self, signed: Signed) -> None:
        """Forgets a rollback."""
        remove_quietly(self._path / signed.digest.hex())
        remove_quietly(self._told_path(signed))

    def write_told(self, signed: Signed) -> None:
        """Notes for later lives that peers know a rollback. Raises DiskError."""
        write_atomically(self._told_path(signed))

    def was_told(self, signed: Signed) -> bool:
        """Returns whether peers know a rollback, as far as was noted."""
        return self._told_path(signed).exists()

    def _told_path(self, signed: Signed) -> Path:
        return self._path / f".{signed.digest.hex()}.told"

    def names(self) -> list[str]:
        """Returns the names of the files in the order in which they were written, at most
        `ROLLBACKS_MAX` for each signer."""
        found: list[tuple[int, str]] = []
        try:
            with os.scandir(self._path) as files:
                for file in files:
                    with suppress(FileNotFoundError):  # it was withdrawn meanwhile
                        if not file.name.startswith("."):
                            found.append((file.stat().st_mtime_ns, file.name))
        except OSError:
            return []
        most = ROLLBACKS_MAX * len(self.signers)
        return [name for _, name in sorted(found)[:most]]

    def read(self, name: str) -> tuple[Signed, Rollback]:
        """Returns a rollback, whose signature was checked.

        Raises:
            OSError, RemoteProtocolError: the file cannot be read, or is no rollback by a peer that
                may sign one.
        """
        with open_file(self._path / name) as file:
            signed = decode_signed(file.read(_FILE_BYTES_MAX))
        statement = open_signed(signed, self._run_id, verify)
        if not isinstance(statement, Rollback) or PeerId(signed.author) not in self.signers:
            raise ForgedError("it is no rollback by the founder or a keeper of the run")
        return signed, statement

    def authors_of(self, statement: Rollback) -> frozenset[PeerId]:
        """Returns the peers whose signatures under a rollback are on this disk."""
        found: set[PeerId] = set()
        for name in self.names():
            with suppress(OSError, RemoteProtocolError):
                signed, other = self.read(name)
                if other == statement:
                    found.add(PeerId(signed.author))
        return frozenset(found)


class Rollbacks:
    """The rollbacks that this node knows."""

    def __init__(self, files: RollbackFiles, health: DiskHealth) -> None:
        self._files = files
        self._health = health
        self._known: dict[Digest, tuple[Signed, Rollback]] = {}
        """By the digest of the signed statement, in the order in which they came."""
        self._holding: list[Rollback] = []
        self._on_disk: set[str] = set()
        """Names of the files that were read or written."""
        self._damaged: set[str] = set()
        """Names of files that could not be read, of which the log says so once. They are written
        anew when a peer brings them, or the order is given again."""
        self._told: set[Digest] = set()
        """Those of this node's own that peers know. They are not withdrawn."""
        self._noted: set[Digest] = set()
        """Those of `_told` of which the disk says so."""
        self.withdrawn: str | None = None
        """This node's own order that it gave up last, for people; None: none, or another rollback
        came later."""

    def __iter__(self) -> Iterator[Rollback]:
        """Those that hold, in the order in which they came to hold."""
        return iter(self._holding)

    @property
    def newest_round(self) -> int | None:
        """Round from which the run goes on by the rollback that came last; None: none holds."""
        return self._holding[-1].round if self._holding else None

    def proposal_from(self, oldest_round: int) -> str | None:
        """Returns the newest proposal of a keeper to which too few others have agreed, for people.
        None: there is none, rounds were taken back after it, or nobody can agree any more.

        Args:
            oldest_round: the oldest round to which a rollback may go now.
        """
        if not self._known:
            return None
        _, statement = next(reversed(self._known.values()))
        missing = self._missing(statement)
        if not missing or statement.round < oldest_round:
            return None
        keepers = "1 more keeper has" if missing == 1 else f"{missing} more keepers have"
        return (
            f"a keeper wants to take back all rounds after {statement.round}; that happens "
            f"when {keepers} given the order: gossamer rollback {statement.round}"
        )

    def parents(self) -> frozenset[Digest]:
        """Returns the heads from which the run goes on. Nodes that go back keep their states."""
        return frozenset(Digest(each.parent) for each in self)

    def heard(self, signed: Signed, statement: Rollback, *, is_old: bool = False) -> bool:
        """Takes a checked rollback of a peer that may sign one. Returns whether it is news.

        Args:
            is_old: it lay on the disk when this life began. Most nodes left its rounds long ago.
        """
        signed_by_author = sum(each.author == signed.author for each, _ in self._known.values())
        if signed.digest in self._known or signed_by_author >= ROLLBACKS_MAX:
            return False
        self._known[signed.digest] = (signed, statement)
        self.withdrawn = None
        parent = short(Digest(statement.parent))
        missing = self._missing(statement)
        if missing:
            log.warning(
                "a keeper wants to take rounds back; other keepers agree with gossamer rollback",
                keeper=signed.author,
                from_round=statement.round + 1,
                goes_on_from=parent,
                missing=missing,
            )
        elif statement not in self._holding:
            self._holding.append(statement)
            tell = log.info if is_old else log.warning
            tell(
                "rounds were taken back before this start; this node goes on without them"
                if is_old
                else "rounds were taken back; this node leaves them",
                from_round=statement.round + 1,
                goes_on_from=parent,
            )
        return True

    def _missing(self, statement: Rollback, but: Signed | None = None) -> int:
        """Returns the number of keepers that still have to sign a rollback; 0: it holds. `but`: a
        signature that is not counted."""
        return self._files.signers.missing(
            [
                PeerId(signed.author)
                for signed, other in self._known.values()
                if other == statement and signed != but
            ]
        )

    def load(self) -> None:
        """Takes what is on disk, before the node begins."""
        for signed, statement in self._read_new():
            self.heard(signed, statement, is_old=True)

    def _read_new(self) -> list[tuple[Signed, Rollback]]:
        """Reads the files that were not read or written yet; in a thread."""
        found = []
        for name in self._files.names():
            if name in self._on_disk:
                continue
            try:
                signed, statement = self._files.read(name)
            except (OSError, RemoteProtocolError) as error:
                if name not in self._damaged:
                    self._damaged.add(name)
                    log.warning(
                        "a rollback on disk is left out: a peer may bring it, or its signer gives "
                        "the order again",
                        file=name,
                        error=str(error),
                    )
                continue
            self._damaged.discard(name)
            if self._files.was_told(signed):
                self._told.add(signed.digest)
                self._noted.add(signed.digest)
            self._on_disk.add(name)
            found.append((signed, statement))
        return found

    def _write(self, unwritten: Sequence[Signed], unnoted: Sequence[Signed]) -> None:
        """Keeps rollbacks that were heard, and notes which peers know; in a thread."""
        with self._health.writing("rollbacks"):
            for signed in unwritten:
                self._files.write(signed)
                self._on_disk.add(signed.digest.hex())
            for signed in unnoted:
                self._files.write_told(signed)
                self._noted.add(signed.digest)

    def _withdraw(self, signed: Signed) -> None:
        """Gives up an order that this node itself could not follow."""
        _, statement = self._known.pop(signed.digest)
        self.withdrawn = (
            f"this node could not go back to round {statement.round} within {ORDER_SECONDS:g} s, "
            "and the log says why; no peer was told, and the run goes on as before. "
            f"gossamer rollback {statement.round} tries it again"
        )
        self._holding = [each for each in self._holding if not self._missing(each)]
        self._files.remove(signed)
        self._on_disk.discard(signed.digest.hex())  # the same order may be given again
        log.error(
            "this node could not go back to the state that was ordered; no peer was told, and the "
            "run goes on as before",
            seconds=ORDER_SECONDS,
        )

    async def run(self, gossip: Gossip, node: RollbackNode, run_in_thread: RunInThread) -> None:
        """Takes orders and keeps what was heard, until cancelled.

        The node whose order takes rounds back goes there first. It tells the others when it can
        serve them the state.
        """
        began: dict[Digest, float] = {}
        """Local time since which this life of the node tries to follow an order of its own."""
        for look in itertools.count():
            is_due = look % DISK_LOOKS == 0
            for signed, statement in await run_in_thread(self._read_new) if is_due else ():
                if self.heard(signed, statement):
                    node.notify()
            now = trio.current_time()
            for digest, (signed, statement) in list(self._known.items()):
                if not self._is_to_follow_first(node, signed, statement):
                    if signed.author == node.me:
                        self._told.add(digest)
                    gossip.keep_posted(signed, statement)
                elif node.spares_line:
                    began.pop(digest, None)  # the state may have to be fetched: it has all its time
                elif now > began.setdefault(digest, now) + ORDER_SECONDS:
                    del began[digest]
                    self._withdraw(signed)
                    node.notify()
            known = [signed for signed, _ in self._known.values()]
            unwritten = [each for each in known if each.digest.hex() not in self._on_disk]
            unnoted = [each for each in known if each.digest in self._told - self._noted]
            if unwritten or unnoted:
                write = functools.partial(self._write, unwritten, unnoted)
                await run_in_thread(write)
            await sleep_to_tick(LOOK_SECONDS)

    def _is_to_follow_first(self, node: RollbackNode, signed: Signed, statement: Rollback) -> bool:
        """Returns whether this node has to go back before it tells others of a rollback: it is its
        own, takes the rounds back, and no peer knows it. One that is not on this disk came from a
        peer."""
        is_untold = signed.digest not in self._told and signed.digest.hex() in self._on_disk
        decides = not self._missing(statement) and bool(self._missing(statement, signed))
        return signed.author == node.me and is_untold and decides and not node.has_gone_back
