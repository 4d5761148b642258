"""The roll of an invite-only run on one node: who is let in, and how the members agree on it.

A new entry or revocation goes to all members by gossip. This node compares its roll with that of
each member that it gets connected to, and about every `RECONCILE_SECONDS` with that of a random
one, so nothing depends on a gossip message. A member
that does not know this node refuses the exchange, and is shown this node's own chain of entries.

Topic:    gossamer/<run id>/roll   a `RollPage` of new pieces
Streams:  see `protocol.wire.invitation_messages`
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
import trio

from gossamer.node.base.terminal.printable import printable
from gossamer.node.base.threads import RunInThread
from gossamer.node.network.frames import answering, receive_message, send_frame
from gossamer.node.network.identity import Identity
from gossamer.node.network.transport import (
    ORDINARY_ENDS,
    ProtocolRefused,
    Stream,
    Transport,
    TransportError,
)
from gossamer.node.peers.members.expulsion_keeper import ExpulsionKeeper
from gossamer.node.peers.members.introductions import (
    ROLL_SECONDS,
    ask_to_come_in,
    pull_roll,
)
from gossamer.node.peers.members.members_words import MembersWords
from gossamer.node.peers.members.own_entries import OwnEntries
from gossamer.node.peers.members.piece_exchange import serve_pieces
from gossamer.node.peers.offences import Offences
from gossamer.node.storage.admission_files import RollFile
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import PeerId, short
from gossamer.protocol.policy.members.roll import Changes, NotWelcomeError, Roll, UnknownClaimError
from gossamer.protocol.policy.members.roll_order import peer_of
from gossamer.protocol.wire.invitation_messages import (
    CLAIM_BYTES_MAX,
    PIECES_MAX,
    PROBLEM_CHARACTERS_MAX,
    ROLL_PROTOCOL,
    Certificate,
    Claim,
    Entry,
    Revocation,
    RollPage,
    Welcomed,
    decode_claim,
    decode_page,
)
from gossamer.protocol.wire.run_messages import ADMIT_PROTOCOL, Admitted

RECONCILE_SECONDS = 5.0
"""A piece that gossip lost arrives after some times as long. An exchange of equal rolls costs 32
bytes."""

LOOK_SECONDS = 0.5
"""Interval of the looks for new connections."""

ORDERS_SECONDS = 1.0
"""Interval of the looks for revocations that the operator has left."""

INTRODUCE_AGAIN_SECONDS = 60.0
"""Wait after a peer has not taken this node for a member: until then it has heard of this node, or
this node was put out."""

REFUSED_SECONDS = 3 * RECONCILE_SECONDS
"""A node counts as put out when the members have refused it for so long (`members_words`), which is
time for three exchanges."""

ADMISSIONS_AT_ONCE_MAX = 2
"""Streams of one peer that ask to come in: one, and one that it gave up a moment ago."""

NEWS_MAX = 1024
"""Changes that wait to be published; as many as a run may have members."""

log = structlog.get_logger("peers")


class RollKeeper:
    """Lets newcomers in, and keeps this node's roll like those of the other members.

    It has more than 7 parameters and 12 attributes: it brings the same roll to the peers, the disk
    and the operator, and remembers what each has.
    """

    def __init__(
        self,
        roll: Roll,
        transport: Transport,
        identity: Identity,
        offences: Offences,
        file: RollFile,
        kept: Iterable[Entry],
        unix_seconds: Callable[[], float],
        randomness: random.Random,
    ) -> None:
        """
        Args:
            kept: entries that an earlier life has kept for this node (`own_entries`).
            unix_seconds: the clock by which certificates expire.
        """
        self.roll = roll
        self._transport = transport
        self._identity = identity
        self._offences = offences
        self._file = file
        self._own = OwnEntries(identity.peer_id, kept)
        self._own.note(roll)
        self._unix_seconds = unix_seconds
        self._random = randomness
        self._topic = f"gossamer/{roll.run_id.hex()}/roll"
        self._send_news, self._news = trio.open_memory_channel[tuple[Changes, bool]](NEWS_MAX)
        self._is_saved = not file.needs_writing
        self._carried_out: set[Path] = set()
        """Files of orders that the roll has, and that wait for the disk to take the roll."""
        self._refused: dict[PeerId, float] = {}
        """Time until which this node is not introduced again; members only, so they are few."""
        self._words = MembersWords(roll)
        self._was_told = False
        """Whether a person was told that this node is no member."""
        self.votes: ExpulsionKeeper | None = None
        """Compares the votes of members whenever the rolls are compared."""

    def open(self) -> None:
        """Serves newcomers and members. Call it after `Transport.admit`."""
        self._offences.roll = self.roll
        self._transport.handle(
            ADMIT_PROTOCOL,
            self._serve_admission,
            streams_per_peer_max=ADMISSIONS_AT_ONCE_MAX,
            for_strangers=True,
        )
        self._transport.handle(ROLL_PROTOCOL, self._serve_roll)

    async def run(self, run_in_thread: RunInThread) -> None:
        """Exchanges, and takes the operator's orders, until cancelled."""
        self._transport.subscribe(self._topic, self._heard)
        for peer in self._transport.peers():
            self._transport.let_in(peer)  # it was a stranger when the connection came about
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._spread)
            nursery.start_soon(self._reconcile_forever)
            while True:
                await self._look(run_in_thread)
                await trio.sleep(ORDERS_SECONDS)

    async def _look(self, run_in_thread: RunInThread) -> None:
        """Takes the operator's orders, and saves the roll. An order's file stays until the roll
        with it is on the disk: a node that ends before finds the order again."""
        orders = await run_in_thread(self._file.orders)
        for path in orders.keys() - self._carried_out:
            self._carry_out(orders[path])
        self._carried_out = {*orders}
        if not self._is_saved:
            page, self._is_saved = self._page(), True  # the roll may change during the save
            if not await run_in_thread(lambda: self._file.save(page)):
                self._is_saved = False
                return
        if orders:
            await run_in_thread(lambda: self._file.remove_orders(orders))
            self._carried_out = set()

    @property
    def problem(self) -> str | None:
        """The reason why the members do not take this node for one; None if they do."""
        me = self._identity.peer_id
        if cause := self.roll.why_out(me):
            reason = f"it was put out of the run ({cause})"
        elif refusal := self._words.refusal(trio.current_time(), REFUSED_SECONDS):
            reason = printable(refusal)
        else:
            return None
        return (
            f"the members of the run do not take this node for one: {reason}. Its work counts "
            "nowhere. Ask for a new invitation, and join with a new --state-dir"
        )

    def _page(self) -> RollPage:
        """Returns the roll for the disk, with what is kept for this node though it may not
        count."""
        page = self.roll.page()
        return RollPage((*page.entries, *self._own.missing_in(self.roll)), page.revocations)

    def _carry_out(self, revocation: Revocation) -> None:
        """Takes a revocation that the operator has left."""
        target = peer_of(revocation.target)
        if not self.roll.has_room(peer_of(revocation.revoker), [revocation.target]):
            log.warning("no more revocations of this node count: ask a root", target=target)
            return
        try:
            changes = self.roll.add(RollPage((), (revocation,)))
        except RemoteProtocolError as error:
            log.warning("an order to revoke is damaged; give it again", error=str(error))
            return
        log.info("a revocation", target=target, puts_out=len(changes.gone))
        self.changed(changes, is_published=True)

    # Newcomers

    async def introduce(self, peer: PeerId) -> None:
        """Shows a peer that this node is a member, and learns whether the peer is one."""
        if trio.current_time() < self._refused.get(peer, 0.0):
            return
        self._come_back()
        try:
            with trio.fail_after(ROLL_SECONDS):
                answer = await ask_to_come_in(self._transport, peer, self._own.claim(self.roll))
                self._take(peer, RollPage((*answer.yours, *answer.mine), ()))
                if answer.is_admitted and not self.roll.is_member(peer):
                    # Its roll may have the witnesses that are missing here.
                    await self.reconcile(peer)
        except ORDINARY_ENDS as error:
            log.debug("not introduced", peer=short(peer), error=str(error))
            return
        if not self.roll.is_member(peer):
            return
        if answer.is_admitted:
            self._words.note(peer, "", trio.current_time())
            return
        self._refused[peer] = trio.current_time() + INTRODUCE_AGAIN_SECONDS
        if answer.problem:
            self._words.note(peer, answer.problem, trio.current_time())
        if answer.problem and not self._was_told:
            self._was_told = True
            log.warning(
                "a member of the run does not take this node for one: its work counts nowhere. "
                "Ask for a new invitation, and join with a new --state-dir",
                peer=short(peer),
                reason=answer.problem,
            )

    async def _serve_admission(self, stream: Stream) -> None:
        async with answering(stream, ROLL_SECONDS, self._offences.note):
            message = await receive_message(stream, CLAIM_BYTES_MAX)
            if message:
                answer = to_msgpack(self._answer(stream.peer_id, decode_claim(message)))
            else:
                answer = to_msgpack(Admitted(self.roll.is_member(stream.peer_id)))
            await send_frame(stream, answer)

    def _answer(self, peer: PeerId, claim: Claim) -> Welcomed:
        """Lets a peer in whose claim is good.

        Raises:
            RemoteProtocolError: something in the claim is forged.
        """
        roll, me = self.roll, self._identity.peer_id
        self.changed(roll.add(RollPage(claim.entries, ())), is_published=True)
        try:
            now = int(self._unix_seconds())
            entry = roll.let_in(claim, peer, me, now, self._identity.sign)
            behind = [] if entry is None else self._behind(entry.certificate)
            if any(map(self._offences.is_banned, behind)):
                raise NotWelcomeError(
                    "its sponsor, or a holder of the same invitation, is banned now"
                )
        except NotWelcomeError as error:
            log.debug("a peer is not let in", peer=peer, reason=str(error))
            is_told = not isinstance(error, UnknownClaimError)
            return Welcomed(False, str(error)[:PROBLEM_CHARACTERS_MAX] if is_told else "", (), ())
        if entry is not None:
            self.changed(roll.add(RollPage((entry,), ())), is_published=True)
            log.info("a peer is let in", peer=peer, sponsor=peer_of(entry.certificate.sponsor))
        return Welcomed(True, "", roll.proof_of(peer), roll.proof_of(me))

    def _come_back(self) -> None:
        """Takes what is kept for this node into its roll again, where its entry was replaced by one
        that counts no more."""
        if not self._own or self.roll.was_member(self._identity.peer_id):
            return
        try:
            changes = self.roll.add(RollPage(self._own.missing_in(self.roll), ()))
        except RemoteProtocolError as error:
            log.warning("an entry that this node kept is damaged", error=str(error))
            return
        self.changed(changes, is_published=True)

    def _behind(self, certificate: Certificate) -> list[PeerId]:
        """Returns the sponsor and the present holders of a certificate."""
        return [peer_of(certificate.sponsor), *self.roll.of_certificate(certificate.key)]

    # Members

    def _heard(self, author: PeerId, data: bytes) -> bool:
        """Takes new pieces from gossip, and returns whether there was news in them."""
        if not self.roll.is_member(author):
            return False
        try:
            return self._take(author, decode_page(data))
        except RemoteProtocolError as error:
            self._offences.note(author, error)
            return False

    def _take(self, bringer: PeerId, page: RollPage) -> bool:
        """Takes pieces that a peer brings. RemoteProtocolError: one of them is forged."""
        changes = self.roll.add(page)
        if changes:
            log.debug("news of the roll", peer=short(bringer), came=len(changes.came))
        self.changed(changes)
        return bool(changes.news)

    def changed(self, changes: Changes, *, is_published: bool = False) -> None:
        """Acts on a change of the roll.

        Args:
            is_published: whether its news goes to the others: what came from a member went to them
                too, and votes of members are no piece of the roll.
        """
        if not changes:
            return
        self._is_saved = False
        self._own.note(self.roll)
        for peer in sorted(changes.came):
            entry = self.roll.entry(peer)
            if entry is not None:  # another witness has let it in
                behind = self._behind(entry.certificate)
                self._offences.share(peer, [each for each in behind if each != peer])
            self._transport.let_in(peer)
        me = self._identity.peer_id
        if me in changes.gone and self.roll.was_member(me):
            log.warning("this node was put out of the run: its work counts nowhere any more")
        try:
            self._send_news.send_nowait((changes, is_published))
        except trio.WouldBlock:
            log.warning("many changes of the roll at once: comparisons have to bring them")
        self._come_back()

    async def _spread(self) -> None:
        """Publishes news, and ends the connections of those who are out."""
        async for changes, is_published in self._news:
            for peer in sorted(changes.gone):
                await self._transport.disconnect(peer)
            if is_published and changes.news:
                try:
                    await self._transport.publish(self._topic, to_msgpack(changes.news))
                except (TransportError, ValueError) as error:
                    log.debug("could not publish", topic=self._topic, error=str(error))

    async def _reconcile_forever(self) -> None:
        compared: set[PeerId] = set()
        due_seconds = 0.0
        while True:
            peers = self._transport.peers()
            compared.intersection_update(peers)
            new = [peer for peer in peers if peer not in compared]
            if new:
                compared.add(new[0])
                await self._reconcile_with(new[0])
            elif peers and trio.current_time() >= due_seconds:
                wait_seconds = RECONCILE_SECONDS * self._random.uniform(0.8, 1.2)
                due_seconds = trio.current_time() + wait_seconds
                await self._reconcile_with(self._random.choice(peers))
            else:
                await trio.sleep(LOOK_SECONDS)

    async def _reconcile_with(self, peer: PeerId) -> None:
        try:
            with trio.fail_after(ROLL_SECONDS):
                await self.reconcile(peer)
                # Members answer only those whom they take for one.
                self._words.note(peer, "", trio.current_time())
                if self.votes is not None:
                    await self.votes.reconcile(peer)
        except ProtocolRefused:
            await self.introduce(peer)
        except ORDINARY_ENDS as error:
            log.debug("exchange failed", peer=short(peer), error=str(error))

    async def reconcile(self, peer: PeerId) -> None:
        """Takes the pieces of a peer's roll that are missing in this node's.

        Raises:
            TransportError: the peer cannot be reached.
            RemoteProtocolError: its answer is not valid. It is reported as an offence too.
        """
        try:
            for page in await pull_roll(self._transport, peer, self.roll):
                self._take(peer, page)
                await trio.lowlevel.checkpoint()
        except RemoteProtocolError as error:
            self._offences.note(peer, error)
            raise

    async def _serve_roll(self, stream: Stream) -> None:
        async with answering(stream, ROLL_SECONDS, self._offences.note):
            await serve_pieces(stream, self.roll, PIECES_MAX)
