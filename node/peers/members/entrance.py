"""The entrance of a run on one node: whom the manifest's `admission` lets in.

    open      everybody
    allow     the peers that the manifest lists
    invite    the founder and the peers that the manifest lists (the roots), and everybody whom a
              chain of certificates leads to one of them (`protocol.policy.members.roll`)

All others are strangers and are served nothing but ``/gossamer/admit/1``.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import Transport
from gossamer.node.peers.members.expulsion_keeper import ExpulsionKeeper
from gossamer.node.peers.members.roll_keeper import RollKeeper
from gossamer.node.peers.members.run_exchange import (
    NotAdmittedError,
    admits,
    require_admitted,
    serve_admission,
)
from gossamer.node.peers.offences import Offences
from gossamer.node.storage.admission_files import ExpulsionFile, RollFile
from gossamer.node.storage.state_dir import StateDir
from gossamer.protocol.errors import ForgedError, RemoteProtocolError
from gossamer.protocol.ids import PeerId, public_key_of
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.policy.members.expulsion_count import Standings
from gossamer.protocol.policy.members.roll import Roll, roots_of
from gossamer.protocol.wire.invitation_messages import Entry

log = structlog.get_logger("peers")


class Entrance:
    """Decides whom this node serves, and serves those who ask to come in."""

    def __init__(
        self,
        manifest: Manifest,
        identity: Identity,
        transport: Transport,
        state_dir: StateDir,
        offences: Offences,
        unix_seconds: Callable[[], float],
    ) -> None:
        """Call it before any other protocol is served.

        Raises:
            NotAdmittedError: the run does not admit this node.
        """
        self._manifest = manifest
        self._keeper: RollKeeper | None = None
        self.roll: Roll | None = None
        """The members of an invite-only run; None in other runs."""
        self.votes: ExpulsionKeeper | None = None
        """The votes by which members put out others; None in other runs."""
        if manifest.admission == "invite":
            self.roll = roll = roll_of(manifest)
            file = RollFile(state_dir.root, state_dir.health)
            self.votes = votes = ExpulsionKeeper(
                roll, transport, identity, offences,
                ExpulsionFile(state_dir.root, state_dir.health),
            )  # fmt: skip
            votes.load()
            kept = _load(roll, file, manifest, identity.peer_id)
            randomness = random.Random(f"roll {identity.peer_id}")
            self._keeper = RollKeeper(
                roll, transport, identity, offences, file, kept, unix_seconds, randomness
            )
            self._keeper.votes = votes
            votes.changed = self._keeper.changed
            transport.admit(self.admits)
            self._keeper.open()
            votes.open()
        else:
            require_admitted(manifest, identity.peer_id)
            serve_admission(transport, self.admits)

    def admits(self, peer: PeerId) -> bool:
        """Returns whether a peer is let in now."""
        return admits(self._manifest, peer) if self.roll is None else self.roll.is_member(peer)

    def is_out(self, peer: PeerId) -> bool:
        """Returns whether a peer was put out of the run for good."""
        roll = self.roll
        return roll is not None and roll.was_member(peer) and not roll.is_member(peer)

    @property
    def problem(self) -> str | None:
        """The reason why the members of the run do not take this node for one; None if they do."""
        return None if self._keeper is None else self._keeper.problem

    def require_known(self, peers: list[PeerId]) -> None:
        """Raises ForgedError for a header with a member that the manifest never admits.

        The roll of an invite-only run is no measure for a header: a newcomer that worked may have
        lost its slot to an earlier one since, and then nobody could follow the chain any more.
        """
        if self._keeper is None and not all(map(self.admits, peers)):
            raise ForgedError("header with members that the run does not admit")

    def count_at(self, standings: Standings) -> None:
        """Says by which stake votes of members count, when the chain is read."""
        if self.votes is not None:
            self.votes.standings = standings

    async def run(self, run_in_thread: RunInThread) -> None:
        """Keeps roll and votes until cancelled; returns at once in other runs."""
        if self._keeper is None or self.votes is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keeper.run, run_in_thread)
            nursery.start_soon(self.votes.run, run_in_thread)

    async def introduce(self, peer: PeerId) -> None:
        """Shows a peer that this node has dialled that it is a member, if the peer is a stranger
        here. Both may have come in while they did not hear of each other."""
        if self._keeper is not None and not self._keeper.roll.was_member(peer):
            await self._keeper.introduce(peer)


def roll_of(manifest: Manifest) -> Roll:
    """Returns the roll of an invite-only run, with nothing on it but the roots."""
    return Roll(manifest.run_id, roots_of(manifest.founder, manifest.allowed), verify)


def _load(roll: Roll, file: RollFile, manifest: Manifest, me: PeerId) -> tuple[Entry, ...]:
    """Fills a roll from the disk, and returns what an earlier life has kept for this node: the
    entries by which it came in, and those that they need. Where none of its own counts the node
    asks the others to be let in again. NotAdmittedError: this node is not in the file, and the file
    is whole."""
    try:
        page, problem = file.read_into(roll)
    except RemoteProtocolError as error:
        log.warning("the roll cannot be read; the other members have it", error=str(error))
        return ()
    if problem:
        log.warning("the roll is read from its copy, and written again", problem=problem)
    key = public_key_of(me)
    own = [each for each in page.entries if each.newcomer == key]
    if roll.was_member(me) != roll.is_member(me) or (not own and key not in roll.roots):
        raise NotAdmittedError(
            f"this node ({me}) is no member of the run {manifest.name}"
            + (f": it was put out ({cause})" if (cause := roll.why_out(me)) else "")
            + ". A member lets it in with `gossamer invite`; a node that was put out needs a new "
            "--state-dir for it"
        )
    held = set(roll.page().entries)
    return (*own, *(each for each in page.entries if each not in held))
