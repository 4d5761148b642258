"""Decides whether a trainer may use the momentum that it found on disk (`sync = "distro"`).

The part of a gradient that no shared step took stays in the trainer's decoupled momentum. It is
saved between rounds, like other work, with its place in the chain: the head, and the rings on that
head that have parts of it, because those rings may be committed later. After a restart of the
trainer or of the node, newer rounds may have taken parts of the momentum. As for all work, only
headers take. Each header between the saved head and the present one is looked at. Nothing was taken
if each of them credits this peer with no tokens, or belongs to a ring that was saved with the
momentum. Then the trainer keeps the momentum. Otherwise the whole momentum is dropped, because it
is not known which part was taken: rather lost than counted twice. It is also dropped if the chain
has left the saved head, and if it is as stale as other work may not be (`rounds.stale_rounds`).

So a node keeps its momentum if it leaves in order at any moment, if it pauses, or if it is killed
while no ring has parts that are newer than its file. A node that is killed in the middle of a round
loses the momentum if the others finish that round with its parts.

A ring may also be committed with a part that its owner saw left out and kept (`shared_steps`). If a
header credits more tokens than were removed from the momentum, the momentum is dropped. That ring
may be of a branch that wins later, when this node has committed other rounds, so such rings are
remembered over heads.

A ring that has parts of an earlier life may be committed after the new life began. So the question
is asked again at every round and before every save. It is settled when a ring is committed that has
parts of the present trainer, because the earlier life's round is not in this chain then.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.modes.ring_steps import RingParts
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.state_blocks import CannotRebuildError
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.state.chain import Header
from gossamer.trainer.ipc.messages import Place

RINGS_MAX = 16
"""Upper bound on remembered rings on one head. Each attempt at a round makes one, and the newest
attempts are the ones that may be committed."""

log = structlog.get_logger("node")


class CarriedMomentum:
    """Knows the place of the trainer's momentum in the chain. It lives as long as the node."""

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
        """Number of the trainer process that the other attributes describe."""
        self._loaded: Place | None = None
        """Place of the momentum that this trainer found on disk, while its use is not settled."""
        self._head: Digest | None = None
        self._rings: tuple[bytes, ...] = ()
        """Rings on that head that have parts of this momentum, which those parts have left."""
        self._left_out: dict[Digest, int] = {}
        """Rings, on that head or on earlier ones, that may have more of this momentum than has left
        it, with the tokens that have left it."""

    def had_parts_in(self, rings: Sequence[RingParts]) -> None:
        """Notes rings that have parts of the trainer which the last `settle` described."""
        whole = [ring.ring_id for ring in rings if not ring.has_left_out]
        self._rings = (*self._rings, *whole)[-RINGS_MAX:]
        for ring in rings:
            if ring.has_left_out:
                self._left_out[ring.ring_id] = ring.tokens
                if len(self._left_out) > RINGS_MAX:
                    del self._left_out[next(iter(self._left_out))]

    async def settle(self) -> Place:
        """Tells the trainer whether to keep a momentum that it found on disk. Only between rounds.

        Returns:
            The place of the momentum that the trainer has afterwards.
        """
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
            self._head, self._rings = head, ()
        return Place(head, (*(self._loaded.rings if self._loaded else ()), *self._rings))

    def _is_counted_twice(self, head: Digest) -> bool:
        """Returns whether a round that is new in the chain since the last head took more than was
        removed from the momentum."""
        before, chain = self._head, self._committed.chain
        assert before is not None, "a ring before the first settle"
        way = chain.path_between(before, head)
        if way is None:  # another branch won
            way = chain.only_in(head, before)
            if len(way) > self._stale_rounds:
                return True  # perhaps their records are gone
        for one in way:
            try:
                header = self._committed.blocks.header(one)
            except CannotRebuildError:
                return True  # rather lost than counted twice
            tokens = self._left_out.get(Digest(header.ring_id))
            if tokens is not None and self._tokens_in(header) > tokens:
                return True
        return False

    def _tokens_in(self, header: Header) -> int:
        return sum(one.tokens for one in header.members if one.peer_id == self._me)

    def _judge(self, loaded: Place, head: Digest) -> tuple[str, bool]:
        """Judges a momentum from disk.

        Returns:
            Why it is dropped, empty if it is kept; and whether a ring of this life settles the
            question for good.
        """
        way = self._committed.chain.path_between(Digest(loaded.head), head)
        if way is None:
            return f"{short(Digest(loaded.head))} is not in the chain", False
        if len(way) > self._stale_rounds:
            return f"it missed {len(way)} rounds", False
        is_over = False
        for one in way:
            try:
                header = self._committed.blocks.header(one)
            except CannotRebuildError as error:
                return f"what was taken of it is not known: {error}", False
            if self._tokens_in(header):
                if header.ring_id not in (*loaded.rings, *self._rings):
                    return f"round {header.round} took parts of it", False
                is_over = is_over or header.ring_id in self._rings
        return "", is_over
