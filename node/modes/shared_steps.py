"""The shared steps of one round (`sync = "distro"`): this peer's part in each step.

    trainer --Shared--> offer --partial sum of step s--> ring --average of s--> parameters
       ^                                                                            |
       +------------------------------------Share-----------------------------------+

The peers agree on the ring of a round once, for all its steps: a step is a chunk, or several
(`outer.step_chunks`). The partial sums of step s walk round the ring after the steps before it are
done, and collect a part from each member. So the rules of the ring hold as for any chunk: a failed
member is skipped, and no step waits for it.

Rules
-----
- A member's part in a step is what its trainer offered last. An offer that was late for its step is
  good for the next one: a sign is hardly less right a step later.
- A member may have no part yet when the partial sum of a step comes. It then keeps the partial sum
  half as long as the others took until then (`StepTiming`). After that it abstains with an empty
  part. Its trainer's work stays in its momentum.
- A step of several chunks has one part or none of a member: the first chunk that waits for the
  member decides for all of them. A part of which any chunk is in an average counts as taken as a
  whole: rather lost than counted twice.
- The member that begins a step has no partial sum to compare with. It waits as long, counted from
  the step before. A partial sum without any part says nothing of the time that a step takes, and
  counts as none.
- In a step without any part all members have waited too little: the fast ones that they knew have
  gone, or all have become slower. So what is known of the times is forgotten, and the next step is
  waited for as at first. Otherwise the empty steps would follow each other faster than any trainer
  is, for ever.
- A member does not wait in vain: it knows how long its trainer takes for a part. If even the
  shortest of these times is too long, it passes the partial sum on at once, and begins a step when
  the others are about ready. Otherwise the waits of slow members add up: each of them measures the
  waits of the others as time that a step takes, and waits longer.
- A member waits once for an offer. If the offer does not come by then, the member begins and passes
  on later steps without it, until it is there: a trainer that hangs is noticed after minutes, and
  would hold up each step until then.
- A part that the average of a step contains is removed from the trainer's momentum; any other part
  stays there. If a part's fate is not known when the round ends, it is removed: rather lost than
  counted twice.
- A member that was put out of the ring may take a step with one average while the ring commits a
  better one, which contains a part that the member kept. `RingParts` gives the upper bound on what
  a header may credit to this peer. If a header credits more, the momentum is dropped
  (`carried_momentum`).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer import Trainer
from gossamer.node.modes.ring_steps import Part, RingParts, RingSteps
from gossamer.node.storage.state.committed import CommittedState
from gossamer.protocol.codecs.step_payloads import SignPayloads
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.rounds.inventory import Payload
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round

PATIENCE_PART = 0.5
"""Patience as a part of the time that the others took for a step. A member that is slower by half
has a part in every step, and a slower one in every second step."""

PATIENCE_SECONDS_MIN = 0.25
"""Every process is late by this much now and then."""

PATIENCE_SECONDS_MAX = 10.0
"""A third of `patience.KEPT_SECONDS`, after which keeping a partial sum is an offence."""

STEP_SECONDS_MAX = 60.0
"""A member that begins a step begins it within this time: half of `patience.STALL_SECONDS`."""

STEPS_KEPT = 16
"""The time of a step is the median over so many steps, and the shortest time of an own part is that
of so many parts."""

log = structlog.get_logger("steps")


class StepTiming:
    """The time that a step takes the other members. It lives as long as the node."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS_KEPT)
        self._own_seconds: deque[float] = deque(maxlen=STEPS_KEPT)

    def took(self, seconds: float) -> None:
        """Notes the time from the step before to a partial sum that has parts of others."""
        self._seconds.append(seconds)

    def trained(self, seconds: float) -> None:
        """Notes the time that this peer's trainer took for a part."""
        self._own_seconds.append(seconds)

    def forget(self) -> bool:
        """Forgets the times of steps. Returns whether any were known."""
        was_known = bool(self._seconds)
        self._seconds.clear()
        return was_known

    @property
    def own_seconds_min(self) -> float:
        """Shortest time of an own part; 0 if nothing is known."""
        return min(self._own_seconds, default=0.0)

    @property
    def step_seconds(self) -> float:
        """Median time of a step; 0 if nothing is known."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    @property
    def partial_sum_patience(self) -> float:
        """Time for which a partial sum is kept for this peer's part, in seconds."""
        if not self._seconds:
            return PATIENCE_SECONDS_MAX
        wanted = PATIENCE_PART * statistics.median(self._seconds) + PATIENCE_SECONDS_MIN
        return min(wanted, PATIENCE_SECONDS_MAX)

    @property
    def step_patience(self) -> float:
        """Time for which this peer waits for its own part before it begins a step, in seconds."""
        if not self._seconds:
            return STEP_SECONDS_MAX
        return min(statistics.median(self._seconds) + self.partial_sum_patience, STEP_SECONDS_MAX)


class SharedStepRunner:
    """The shared steps of one round at one peer. `run` goes on until `close`.

    It has 16 attributes: seven components, and the state of one offer, of the rings, and of `run`.
    """

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        payloads: SignPayloads,
        trainer: Trainer,
        machine: Round,
        timing: StepTiming,
        run_in_thread: RunInThread,
    ) -> None:
        self._me = me
        self._payloads = payloads
        self._committed = committed
        self._trainer = trainer
        self._run_in_thread = run_in_thread
        self._machine = machine
        self._timing = timing
        self._update: bytes | None = None
        """The trainer's newest offer, until its fate is known."""
        self._begun_seconds: float | None = None
        """Local time at which the trainer began the next offer; None: it has not, or that is not
        known."""
        self._has_waited = False
        """Whether a step was waited with for the trainer's next offer, in vain."""
        self._has_trained = False
        """Whether the trainer will offer nothing more in this round."""
        self._steps: RingSteps | None = None
        """This peer's parts in the ring that it follows."""
        self._void: list[RingSteps] = []
        """Its parts in rings before that one."""
        self._news = trio.Event()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        """Set when `run` is over."""

    @property
    def has_offer(self) -> bool:
        return self._update is not None

    @property
    def is_closed(self) -> bool:
        return self._scope.cancel_called

    # Events

    def offered(self, update: bytes) -> None:
        """The trainer has a part for a step."""
        if self._begun_seconds is not None:
            self._timing.trained(trio.current_time() - self._begun_seconds)
        self._update, self._begun_seconds, self._has_waited = update, None, False
        self.notify()

    def trained(self) -> None:
        """The trainer has done its steps of this round, or is gone."""
        self._has_trained = True
        self.notify()

    def notify(self) -> None:
        """Wakes the tasks that wait: each looks again."""
        self._news.set()
        self._news = trio.Event()

    def follow(self, ring: Ring) -> RingSteps:
        """A ring begins, perhaps in place of another one: its steps begin where the round does."""
        if self._steps is not None:
            self._steps.become_void()
            self._void.append(self._steps)
        num_chunks = self._committed.sync_sets.whole.plan.num_chunks

        def sign(step: int, root: Digest) -> bytes:
            return self._machine.signed_averages_of(ring).sign_step(step, root)

        self._steps = RingSteps(ring, self._me, self._payloads, num_chunks, self, sign)
        self.notify()
        return self._steps

    def close(self) -> None:
        """The round is over at this peer: no task waits for its steps any more."""
        self._scope.cancel()
        if self._steps is not None:
            self._steps.wake()
        self.notify()

    # Tasks

    async def run(self) -> None:
        """Takes each chunk of each step when its average has come, and tells the trainer."""
        try:
            with self._scope:
                while True:
                    news = self._news
                    if self._steps is None or not await self._take_next(self._steps):
                        await news.wait()
        finally:
            self._ended.set()

    async def _take_next(self, steps: RingSteps) -> bool:
        """Says whether there was a chunk to be taken."""
        chunk, number = steps.num_taken, self._machine.number
        if chunk == steps.num_chunks:
            return False
        average = self._machine.average_of(steps.ring_id, chunk)
        if average is None:
            return False
        committed = self._committed

        def take() -> None:
            if chunk == 0:  # of an earlier ring some steps may have been taken
                committed.begin_steps(number, steps.members)
            committed.take_step(number, chunk, average)

        await self._run_in_thread(take)
        steps.taken(chunk, average)
        step = steps.step_of(chunk)
        is_whole = steps.step_of(steps.num_taken) > step
        if is_whole and steps.took_nothing and self._timing.forget():
            self._has_waited = False
        has_part = self._update is not None and steps.has_part_in(step)
        if is_whole and has_part and not steps.is_void:
            # The offer's step is taken: the trainer goes on from the new parameters.
            self._update, self._begun_seconds = None, trio.current_time()
            with trio.CancelScope(shield=True):  # the round may be over by now
                await self._trainer.share(taken=steps.is_taken_from(step))
        self.notify()
        return True

    async def settle(self, averages: Sequence[Payload] | None) -> list[RingParts]:
        """Tells the trainer the fate of a part whose step was not taken at this peer.

        Only after `close`, when the trainer has ended the round.

        Args:
            averages: averages of all chunks, if the round is committed. None: it may be committed
                later, with that part.

        Returns:
            This peer's parts in each ring that it gave parts to, the newest ring last.
        """
        await self._ended.wait()
        steps, void = self._steps, self._void
        self._steps, self._void = None, []  # they refer to this object: the cycle ends here
        if steps is None:
            return []
        step = steps.step_of(steps.num_taken)
        if averages is not None:
            for later in range(steps.num_taken, steps.num_chunks):
                steps.taken(later, averages[later])
        if self._update is not None and steps.has_part_in(step):
            self._update = None
            await self._trainer.share(taken=averages is None or steps.is_taken_from(step))
        return [each.parts for each in (*void, steps) if each.has_given]

    async def part(self, steps: RingSteps, chunk: int, partial_sum_seconds: float | None) -> Part:
        """See `PartSource`."""
        step = steps.step_of(chunk)
        if not self.is_closed:
            await steps.until_next(step)
        while not (steps.is_void or self.is_closed or steps.num_taken > chunk):
            if (decided := steps.decided_part(chunk)) is not None:
                return decided
            if self._update is not None:
                return steps.decide(chunk, self._update)
            if self._has_trained:
                return steps.decide(chunk, None)
            others, until = self._times(steps, partial_sum_seconds)
            is_in_vain = self._has_waited or self._is_in_vain(until)
            wait_seconds = (others if is_in_vain else until) - trio.current_time()
            if wait_seconds <= 0:
                self._has_waited = self._has_waited or not is_in_vain
                log.debug("too late for a step", step=step, ring=short(steps.ring_id))
                return steps.decide(chunk, None)
            with trio.move_on_after(wait_seconds):
                await self._news.wait()
        return steps.late_part(chunk)

    def _times(self, steps: RingSteps, partial_sum_seconds: float | None) -> tuple[float, float]:
        """Returns the local times at which the next step goes on without this peer's part: if this
        peer does not wait for the part, and if it does."""
        timing = self._timing
        if partial_sum_seconds is None:
            return (
                steps.taken_seconds + timing.step_seconds,
                steps.taken_seconds + timing.step_patience,
            )
        others = max(partial_sum_seconds, steps.taken_seconds)
        return others, others + timing.partial_sum_patience

    def _is_in_vain(self, until_seconds: float) -> bool:
        """Returns whether the trainer's next part was never early enough for a wait until then."""
        begun = self._begun_seconds
        return begun is not None and begun + self._timing.own_seconds_min > until_seconds

    def partial_sum_came(self, steps: RingSteps, chunk: int) -> None:
        """See `PartSource`."""
        if steps.comes_first(chunk):
            self._timing.took(trio.current_time() - steps.taken_seconds)
