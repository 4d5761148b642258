"""The votes by which members of an invite-only run put a branch out, on one node.

The node votes for what its operator wants out, and confirms what votes have put out. New votes go
to all members by gossip. Whenever it compares its roll with that of a member, it compares the votes
as well, so nothing depends on a gossip message.

Topic:    gossamer/<run id>/expulsions   an `ExpulsionPage` of new votes
Streams:  see `protocol.wire.expulsion_messages`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.network.frames import answering
from gossamer.node.network.identity import Identity, verify
from gossamer.node.network.transport import ProtocolRefused, Stream, Transport, TransportError
from gossamer.node.peers.members.introductions import PIECES_AT_ONCE, ROLL_SECONDS
from gossamer.node.peers.members.piece_exchange import pull_pieces, serve_pieces
from gossamer.node.peers.offences import Offences
from gossamer.node.storage.admission_files import ExpulsionFile
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest, PeerId, public_key_of, short
from gossamer.protocol.policy.members.expulsion_count import Standings
from gossamer.protocol.policy.members.expulsions import CONFIRM_ROUNDS, Expulsions
from gossamer.protocol.policy.members.roll import Changes, Roll
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.expulsion_messages import (
    EXPULSION_PIECES_MAX,
    EXPULSION_PROTOCOL,
    VOTES_MAX,
    ExpulsionPage,
    ExpulsionVote,
    SavedExpulsions,
    decode_expulsion_page,
)

LOOK_SECONDS = 1.0
"""Interval of the looks for wishes of the operator, and for new rounds."""

log = structlog.get_logger("peers")


class ExpulsionKeeper:
    """Votes, and keeps this node's votes like those of the other members.

    It has more than 12 attributes: it remembers what the disk, the roll and the operator know
    already.
    """

    def __init__(
        self,
        roll: Roll,
        transport: Transport,
        identity: Identity,
        offences: Offences,
        file: ExpulsionFile,
    ) -> None:
        self.expulsions = Expulsions(roll, verify)
        self.standings: Standings | None = None
        """The stake on this node's chain; None until the chain is read."""
        self.changed: Callable[[Changes], None] = lambda _: None
        """Is told who is out now."""
        self._roll = roll
        self._transport = transport
        self._identity = identity
        self._offences = offences
        self._file = file
        self._topic = f"gossamer/{roll.run_id.hex()}/expulsions"
        self._is_saved = True
        self._saved = SavedExpulsions((), ())
        """What the disk has."""
        self._counted_at: tuple[Digest | None, Digest] | None = None
        """The settled head and the roll by which votes were counted last."""
        self._expelled = frozenset[bytes]()
        self._signed: dict[bytes, int] = {}
        """By target, the round that this life's newest vote named. The vote may have given way to
        others of this node, and is not signed again at the same head."""
        self._told: set[bytes] = set()
        """Targets of which the operator was told. They are of the roll, so they are few."""

    def load(self) -> None:
        """Takes what an earlier life has left, and puts out whom it says."""
        try:
            saved = self._file.read()
            if saved is not None:
                self.expulsions.restore(saved)
                self._saved = saved
        except RemoteProtocolError as error:
            log.warning("the votes cannot be read; the other members have them", error=str(error))
        self._expelled = self.expulsions.expelled
        self._roll.expel(self._expelled)

    def open(self) -> None:
        """Serves members."""
        self._transport.handle(EXPULSION_PROTOCOL, self._serve)

    async def run(self, run_in_thread: RunInThread) -> None:
        """Votes and keeps votes until cancelled."""
        self._transport.subscribe(self._topic, self._heard)
        while True:
            wishes = await run_in_thread(self._file.wishes)
            self._advance()
            await self._vote(wishes)
            saved = self._saved if self._is_saved else self.expulsions.saved()
            self._is_saved = True
            if saved != self._saved:
                if await run_in_thread(lambda saved=saved: self._file.save(saved)):  # type: ignore[misc]
                    self._saved = saved
                else:
                    self._is_saved = False
            await trio.sleep(LOOK_SECONDS)

    def _advance(self) -> None:
        """Counts anew when there are new rounds, or the roll has changed."""
        standings = self.standings
        if standings is None:
            return
        settled_head = standings.head_at(standings.settled_round)
        counted_at = settled_head, self._roll.digest()
        if counted_at != self._counted_at:
            self._counted_at = counted_at
            self.expulsions.advance(standings)
            self._is_saved = False
            self._follow()

    async def _vote(self, wishes: Iterable[bytes]) -> None:
        """Votes where the operator wants it, and confirms what the members have decided."""
        standings, me = self.standings, self._identity.peer_id
        if standings is None or not self._roll.is_member(me):
            return
        wanted = [each for each in wishes if self._is_open(each)]
        own: list[ExpulsionVote] = []
        for target in [*wanted, *self._stale(standings)][:VOTES_MAX]:
            is_due = self.expulsions.is_due(me, target, standings)
            if is_due and self._signed.get(target) != standings.settled_round:
                self._signed[target] = standings.settled_round
                vote = self.expulsions.vote(me, target, standings, self._identity.sign)
                own += self.expulsions.fresh([vote] if vote else [], standings.settled_round)
        if not own:
            return
        self._take(own)
        for vote in own:
            log.info("this node votes", target=peer_of(vote.target), round=vote.round)
        for start in range(0, len(own), PIECES_AT_ONCE):
            page = ExpulsionPage(tuple(own[start : start + PIECES_AT_ONCE]))
            try:
                await self._transport.publish(self._topic, to_msgpack(page))
            except (TransportError, ValueError) as error:
                log.debug("could not publish", topic=self._topic, error=str(error))

    def _stale(self, standings: Standings) -> list[bytes]:
        """Returns the targets whose proof names an old head, the oldest first: where more are out
        than a voter has votes, each gets its turn."""
        proven = {
            target: max(vote.round for vote in self.expulsions.proof_of(target))
            for target in sorted(self.expulsions.expelled)
        }
        newest = standings.settled_round - CONFIRM_ROUNDS
        return sorted((each for each in proven if proven[each] <= newest), key=proven.__getitem__)

    def _is_open(self, target: bytes) -> bool:
        """Returns whether somebody would go with a target."""
        return any(map(self._roll.is_member, self._roll.put_out_with(target)))

    def _take(self, votes: Sequence[ExpulsionVote]) -> bool:
        """Takes checked votes. Returns whether one of them is news."""
        assert self.standings is not None
        kept = self.expulsions.take(votes, self.standings)
        if kept:
            self._is_saved = False
        for vote in kept:
            self._tell(vote)
        return self._follow() or bool(kept)

    def _tell(self, vote: ExpulsionVote) -> None:
        """Tells the operator of the first vote on a target: the vote needs others. A voter may have
        one on each member, so this is said once a target, and not of every vote."""
        is_own = vote.voter == public_key_of(self._identity.peer_id)
        if is_own or vote.target in self._told or vote.target in self.expulsions.expelled:
            return
        self._told.add(vote.target)
        log.warning(
            "a member votes to put a peer out, with all that came in through it; other members "
            "agree with gossamer revoke, and gossamer members shows the votes",
            voter=peer_of(vote.voter),
            target=peer_of(vote.target),
        )

    def _follow(self) -> bool:
        """Puts out whom votes put out by now. Returns whether there is a change."""
        before, expelled = self._expelled, self.expulsions.expelled
        if before == expelled:
            return False
        self._expelled = expelled
        self._is_saved = False
        for target in sorted(expelled - before):
            proof = self.expulsions.proof_of(target)
            log.warning(
                "the members have put a peer out by a vote, with all that came in through it",
                target=peer_of(target),
                round=max(vote.round for vote in proof),
                voters=len(proof),
            )
        for target in sorted(before - expelled):
            log.warning(
                "a peer is in again: the votes that put it out do not hold on this chain, or with "
                "all members that are known by now",
                target=peer_of(target),
            )
        self.changed(self._roll.expel(expelled))
        return True

    # Members

    def _heard(self, author: PeerId, data: bytes) -> bool:
        """Takes new votes from gossip, and returns whether there was news in them."""
        if self.standings is None or not self._roll.is_member(author):
            return False
        try:
            votes = decode_expulsion_page(data).votes[:PIECES_AT_ONCE]
            fresh = self.expulsions.fresh(votes, self.standings.settled_round)
            self.expulsions.check(fresh)
        except RemoteProtocolError as error:
            self._offences.note(author, error)
            return False
        return self._take(fresh)

    async def reconcile(self, peer: PeerId) -> None:
        """Takes the votes of a peer that are missing here.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: its answer is not valid. It is reported as an offence too.
        """
        if self.standings is None:
            return
        try:
            message = await pull_pieces(
                self._transport, peer, EXPULSION_PROTOCOL, self.expulsions, EXPULSION_PIECES_MAX
            )
            if message is None:
                return
            votes = decode_expulsion_page(message).votes
            fresh = self.expulsions.fresh(votes, self.standings.settled_round)
            for start in range(0, len(fresh), PIECES_AT_ONCE):
                self.expulsions.check(fresh[start : start + PIECES_AT_ONCE])
                await trio.lowlevel.checkpoint()
        except ProtocolRefused:
            return  # a member that does not know this one yet
        except RemoteProtocolError as error:
            self._offences.note(peer, error)
            raise
        # Gossip may have brought some of them meanwhile.
        fresh = self.expulsions.fresh(fresh, self.standings.settled_round)
        if self._take(fresh):
            log.debug("news of votes", peer=short(peer), votes=len(fresh))

    async def _serve(self, stream: Stream) -> None:
        async with answering(stream, ROLL_SECONDS, self._offences.note):
            await serve_pieces(stream, self.expulsions, EXPULSION_PIECES_MAX)
