"""Proves the heads that others announce.

An announcement is a claim, and a reason to ask its author for the commit records on the way to that
head, while the node goes on with its rounds. So a peer that announces a head which does not exist,
or with a wrong weight, delays only itself. Its failure to prove a head is an offence of little
weight, because it may have lost its disk since; a wrong weight is an offence of much weight.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.orders import Orders
from gossamer.node.base.ticks import tick_after
from gossamer.node.peers.chain.chain_records import BehindError, ChainRecords, UnknownHeadError
from gossamer.node.peers.swarm import Swarm
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.errors import ImplausibleError, RemoteProtocolError, UnprovenError
from gossamer.protocol.ids import Digest, PeerId, digest_of, short
from gossamer.protocol.wire.statements import Announce

LOOK_SECONDS = 1.0
"""Interval of the looks without a new announcement: a peer may be due to be asked again."""

REST_SECONDS = 5.0
"""The same while no peer announces a head that is not known here. Such a head comes with an
announcement, which begins a look, or when a peer that announced it is connected."""

ASKED_MAX = 8
"""Peers that are asked at a time and may still answer soon: enough that a few silent ones do not
delay an honest one."""

SLOW_SECONDS = 10.0
"""A peer that has not led to the head after this long takes no place of `ASKED_MAX` from others. It
may be honest, and its chain long: the question goes on. There is one question a peer."""

NEXT_SECONDS = 0.5
"""Wait for a head that follows this node's own one. Members of one ring commit it within some round
trips of each other, and the first ones announce it to the others."""

HEDGE_SECONDS = 3.0
"""A second holder of a head is asked if the first one takes longer than this."""

RETRY_SECONDS_MIN = 2.0
RETRY_SECONDS_MAX = 60.0
"""The pause before a peer that could not prove its head is asked again; it doubles each time."""

log = structlog.get_logger("node")


@dataclass
class _Holder:
    """A peer that is or was asked."""

    head: Digest
    """The newest head that it was asked for."""
    asked_seconds: float
    is_asked: bool = True
    failures: int = 0
    retry_seconds: float = 0.0
    lacks_way: bool = False
    """Whether it answered that it does not know the way itself."""


class HeadProver:
    """Proves announced heads that are not known here."""

    def __init__(
        self, committed: CommittedState, records: ChainRecords, swarm: Swarm, orders: Orders
    ) -> None:
        """`orders` is notified of each head that is proven."""
        self._committed = committed
        self._records = records
        self._swarm = swarm
        self._orders = orders
        self._holders: dict[PeerId, _Holder] = {}
        self._wanted_seconds: dict[Digest, float] = {}
        """Local time since which each wanted head has been announced."""
        self._news = trio.Event()

    def wake(self) -> None:
        """There is a new announcement."""
        self._news.set()

    async def run(self) -> None:
        """Asks until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._news = trio.Event()
                self._look(nursery)
                with trio.move_on_at(self._look_at()):
                    await self._news.wait()

    @property
    def has_open_questions(self) -> bool:
        """Returns whether a peer announces a better head and was not asked yet, or did not answer
        yet."""
        wanted = self._wanted()
        return any(
            peer not in self._holders or self._holders[peer].is_asked for peer in sorted(wanted)
        )

    def lacks_way(self, peer: PeerId) -> bool:
        """Returns whether a living peer said last that it cannot prove the head that it announces:
        its disk lost a record."""
        holder = self._holders.get(peer)
        return holder is not None and holder.lacks_way and peer in self._wanted()

    def _wanted(self) -> dict[PeerId, Announce]:
        """Living peers whose announced head might win over the committed one and is not proven.

        Which of two chains wins is not said by their lengths or tokens, so this node wants to know
        every head that is not its own past.
        """
        chain = self._committed.chain
        return {
            peer: announce
            for peer, announce in self._swarm.living().items()
            if not chain.is_whole(Digest(announce.head))
        }

    def _look(self, nursery: trio.Nursery) -> None:
        now = trio.current_time()
        wanted = self._wanted()
        for peer in [p for p, holder in self._holders.items() if not holder.is_asked]:
            if peer not in wanted and now > self._holders[peer].retry_seconds:
                del self._holders[peer]
        heads = {Digest(announce.head) for announce in wanted.values()}
        self._wanted_seconds = {head: self._wanted_seconds.get(head, now) for head in sorted(heads)}
        num_asked = sum(
            holder.is_asked and now < holder.asked_seconds + SLOW_SECONDS
            for holder in self._holders.values()
        )
        for peer in sorted(wanted, key=self._turn_of):
            if num_asked >= ASKED_MAX:
                return
            head = Digest(wanted[peer].head)
            is_next = wanted[peer].round == self._committed.entry.round + 1
            if is_next and now < self._wanted_seconds[head] + NEXT_SECONDS:
                continue
            if self._may_ask(now, peer, head):
                num_asked += 1
                before = self._holders.get(peer)
                holder = self._holders[peer] = _Holder(head, now)
                if before is not None:
                    holder.failures, holder.lacks_way = before.failures, before.lacks_way
                nursery.start_soon(self._ask, peer, holder, wanted[peer].tokens_total)

    def _look_at(self) -> float:
        """Returns the local time of the next look without news."""
        now = trio.current_time()
        dues = [since + NEXT_SECONDS for since in self._wanted_seconds.values()]
        rest_seconds = LOOK_SECONDS if self._wanted_seconds else REST_SECONDS
        return min([tick_after(rest_seconds), *(due for due in dues if due > now)])

    def _turn_of(self, peer: PeerId) -> tuple[int, bool, Digest]:
        """Returns the order in which peers are asked: members before strangers, of whom there may
        be any number, each with a head of its own. Else it is another one for each that asks, so
        that not all ask the same peer for a head that all of them lack."""
        holder = self._holders.get(peer)
        is_stranger = not self._swarm.gossip.statement_store.has_standing(peer)
        order = digest_of(self._swarm.me.encode(), peer.encode())
        return (0 if holder is None else holder.failures, is_stranger, order)

    def _may_ask(self, now: float, peer: PeerId, head: Digest) -> bool:
        holder = self._holders.get(peer)
        if holder is not None and (holder.is_asked or now < holder.retry_seconds):
            return False
        return not any(
            other.is_asked and other.head == head and now < other.asked_seconds + HEDGE_SECONDS
            for other in self._holders.values()
        )

    async def _ask(self, peer: PeerId, holder: _Holder, claimed_tokens: int) -> None:
        chain, swarm = self._committed.chain, self._swarm
        try:
            await self._records.learn(holder.head, peer)
            if chain.entry(holder.head).tokens_total != claimed_tokens:
                raise ImplausibleError("a head announced with tokens that are not in its chain")
        except UnknownHeadError as error:
            holder.lacks_way = True
            self._note_failure(holder, str(error))
            swarm.offence(peer, UnprovenError(str(error)))
        except BehindError as error:
            self._note_failure(holder, str(error))
        except RemoteProtocolError as error:
            self._note_failure(holder, str(error))
            swarm.offence(peer, error)
        else:
            holder.failures, holder.lacks_way = 0, False
            self._orders.notify()
        finally:
            holder.is_asked = False

    @staticmethod
    def _note_failure(holder: _Holder, problem: str) -> None:
        doublings = min(holder.failures, 10)
        seconds = min(RETRY_SECONDS_MIN * 2**doublings, RETRY_SECONDS_MAX)
        holder.failures += 1
        holder.retry_seconds = trio.current_time() + seconds
        log.info("an announced head is not proven", head=short(holder.head), problem=problem)
