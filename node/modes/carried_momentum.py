"""Whether the momentum that a trainer found on disk may be gone on from (`sync = "distro"`).

What the others did not take of a gradient stays in the trainer's decoupled momentum. It is saved
when other work is, between rounds, with its place in the chain: the head, and the rings on that
head that it had parts in, should they be committed later. After a restart, of the trainer or of the
whole node, rounds since may have taken parts of it. As for all work, only headers take: where each
header on the way from that head to the present one has no tokens of ours, or is of a ring that was
saved with it, nothing that is in the momentum was taken, and it is gone on from. Otherwise it is
dropped whole, because which part of it was taken is not known: rather lost than counted twice. It
is also dropped where the chain went another way, and where it is stale like other work
(`rounds.stale_rounds`).

So a node keeps its momentum that leaves in order, at whatever moment, or pauses, or falls while no
ring has parts that are newer than its file. One that falls in the middle of a round, which the
others finish with its parts, loses it.

A ring may also be committed with a part that its owner saw left out, and kept (`shared_round`). If
a header credits more than what is out of the momentum, that is dropped.

A ring that has parts of an earlier life may be committed after the new life began. So the question
is asked again at every turn and before every save, until a ring is committed that has parts of the
present trainer: the other one's round is not in this chain then.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.modes.shared_steps import RingParts
from gossamer.node.storage.committed import CannotRebuildError, CommittedState
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.state.chain import Header
from gossamer.trainer.ipc.messages import Place

RINGS_MAX = 16
"""Rings on one head that are remembered; each attempt at a round is one, and of several the newest
are those that may be committed."""

log = structlog.get_logger("node")


class CarriedMomentum:
    """Lives as long as the node."""

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        trainer: Trainer,
        stale_rounds: int,
        run_in_thread: RunInThread,
    ) -> None:
        """`stale_rounds`: a momentum that missed more rounds than this is dropped."""
        self._me = me
        self._committed = committed
        self._trainer = trainer
        self._stale_rounds = stale_rounds
        self._run_in_thread = run_in_thread
        self._life = 0
        """Of the trainer that the rest is about."""
        self._loaded: Place | None = None
        """Of the momentum that it found on disk, while that is in question."""
        self._head: Digest | None = None
        self._rings: tuple[bytes, ...] = ()
        """On that head, which it had parts in. What they took is out of its momentum."""
        self._left_out: dict[Digest, int] = {}
        """Rings on that head which it had parts in that stayed in the momentum, and the tokens of
        those that did not."""

    def had_parts_in(self, rings: Sequence[RingParts]) -> None:
        """All of ours in these rings are of the trainer that the last `settle` was about."""
        whole = [ring.ring_id for ring in rings if not ring.has_left_out]
        self._rings = (*self._rings, *whole)[-RINGS_MAX:]
        for ring in rings:
            if ring.has_left_out:
                self._left_out[ring.ring_id] = ring.tokens
                if len(self._left_out) > RINGS_MAX:
                    del self._left_out[next(iter(self._left_out))]

    async def settle(self) -> Place:
        """Tells the trainer whether to keep a momentum that it found, on the present head; the
        place of what it has then. Between rounds."""
        head, trainer = self._committed.head, self._trainer
        is_new = self._life != trainer.lives
        if is_new:
            self._life, self._loaded = trainer.lives, trainer.loaded_momentum
            self._rings, self._left_out = (), {}
        if self._left_out:
            is_counted_twice: bool = await self._run_in_thread(lambda: self._is_counted_twice(head))
            if is_counted_twice:
                await trainer.keep_momentum(keep=False)
                self._left_out = {}
                log.info("the momentum is dropped: a round took what was left out of a step here")
        loaded = self._loaded
        if loaded is not None:
            reason, is_over = await self._run_in_thread(lambda: self._judge(loaded, head))
            is_same = self._life == trainer.lives  # another one's is judged next time
            await trainer.keep_momentum(keep=is_same and not reason)
            if reason:
                log.info("the momentum on disk is dropped", reason=reason)
            elif is_new:
                log.info("training goes on from the momentum on disk")
            rings = loaded.rings if loaded.head == head else ()
            self._loaded = None if reason or is_over else Place(head, rings)
        if self._head != head:
            self._head, self._rings, self._left_out = head, (), {}
        return Place(head, (*(self._loaded.rings if self._loaded else ()), *self._rings))

    def _is_counted_twice(self, head: Digest) -> bool:
        """Whether a round since the last head took more than what is out of the momentum."""
        before = self._head
        assert before is not None, "a ring before the first settle"
        for one in self._committed.chain.path_between(before, head) or ():
            try:
                header = self._committed.header(one)
            except CannotRebuildError:
                return True  # rather lost than counted twice
            tokens = self._left_out.get(Digest(header.ring_id))
            if tokens is not None and self._tokens_in(header) > tokens:
                return True
        return False

    def _tokens_in(self, header: Header) -> int:
        return sum(one.tokens for one in header.members if one.peer_id == self._me)

    def _judge(self, loaded: Place, head: Digest) -> tuple[str, bool]:
        """Why it is dropped, if it is; whether that is settled for good, by a ring of this life."""
        way = self._committed.chain.path_between(Digest(loaded.head), head)
        if way is None:
            return f"{short(Digest(loaded.head))} is not in the chain", False
        if len(way) > self._stale_rounds:
            return f"it missed {len(way)} rounds", False
        is_over = False
        for one in way:
            try:
                header = self._committed.header(one)
            except CannotRebuildError as error:
                return f"what was taken of it is not known: {error}", False
            if self._tokens_in(header):
                if header.ring_id not in (*loaded.rings, *self._rings):
                    return f"round {header.round} took parts of it", False
                is_over = is_over or header.ring_id in self._rings
        return "", is_over
