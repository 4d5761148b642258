"""A round of shared steps (`sync = "distro"`) at one peer: its part in each, and what it waits for.

    trainer --Shared--> offer --token of step s--> ring --final of s--> theta --Share--> trainer

The ring of the round is agreed on once, for all its steps: a step is a chunk. The token of step s
walks round when the steps before it are done, and collects from each member what it has. So the
rules of the ring hold as for any chunk: who falls is skipped, and no step waits for it.

Rules
-----
- A member's part in a step is what its trainer offered last. An offer that was late for its step is
  good for the next one: a sign is hardly less right a step later.
- Who has nothing yet when the token of a step comes keeps it half as long as the others took until
  then (`StepTiming`). Then it abstains: an empty part. Its trainer's work stays in its momentum,
  and nobody waits.
- Who begins a step has no token to compare with, and waits as long from the step before.
- What the final of a step contains of mine is taken out of my momentum; what it does not, stays.
  If that is not known of a part when the round ends, it goes: rather lost than counted twice.
- The final that is committed may be a better one than the one that the step was taken with here, if
  I am out of the ring, and have a part of mine that stayed: `RingParts` says what a header may
  credit me with at most, and if it is more the momentum is dropped (`carried_momentum`).
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
import trio

from gossamer.node.base.threads import RunInThread
from gossamer.node.machine.trainer_client import Trainer
from gossamer.node.storage.committed import CommittedState
from gossamer.protocol.codecs.contributions import add_record
from gossamer.protocol.codecs.payloads import SignPayloads
from gossamer.protocol.ids import Digest, PeerId, short
from gossamer.protocol.rounds.ring import Payload
from gossamer.protocol.rounds.roster import Ring
from gossamer.protocol.rounds.round import Round
from gossamer.protocol.state.chain import tokens_taken
from gossamer.protocol.state.digest import FloatVector

PATIENCE_PART = 0.5
"""Of the time that the others took for a step: a member that is half as slow again has a part in
every step, a slower one in every other."""

PATIENCE_SECONDS_MIN = 0.25
"""Late by so little is every process now and then."""

PATIENCE_SECONDS_MAX = 10.0
"""A third of `attempt.KEPT_SECONDS`, after which a token that goes nowhere is an offence."""

STEP_SECONDS_MAX = 60.0
"""Whoever begins a step begins it by then: half of `attempt.STALL_SECONDS`."""

STEPS_KEPT = 16
"""The others' pace is the median over so many steps."""

log = structlog.get_logger("steps")


@dataclass(frozen=True)
class RingParts:
    """What of mine is in a ring."""

    ring_id: Digest
    tokens: int
    """At most, of those that are out of the momentum."""
    has_left_out: bool
    """Whether a step was taken here without a part that I gave to it, which stayed there."""


class StepTiming:
    """How long a step takes the others. Lives as long as the node."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=STEPS_KEPT)

    def took(self, seconds: float) -> None:
        """From the step before to the token, which others had a part in."""
        self._seconds.append(seconds)

    @property
    def step_seconds(self) -> float:
        """The median; 0 if nothing is known."""
        return statistics.median(self._seconds) if self._seconds else 0.0

    @property
    def partial_sum_patience(self) -> float:
        """How long a token is kept for a part of mine."""
        if not self._seconds:
            return PATIENCE_SECONDS_MAX
        wanted = PATIENCE_PART * statistics.median(self._seconds) + PATIENCE_SECONDS_MIN
        return min(wanted, PATIENCE_SECONDS_MAX)

    @property
    def step_patience(self) -> float:
        """How long after the step before I begin one without a part of mine."""
        if not self._seconds:
            return STEP_SECONDS_MAX
        return min(statistics.median(self._seconds) + self.partial_sum_patience, STEP_SECONDS_MAX)


class SharedStepRunner:
    """One round of one peer. `run` goes on until `close`."""

    def __init__(
        self,
        me: PeerId,
        committed: CommittedState,
        trainer: Trainer,
        machine: Round,
        timing: StepTiming,
        run_in_thread: RunInThread,
    ) -> None:
        self._me = me
        self._committed = committed
        self._trainer = trainer
        self._run_in_thread = run_in_thread
        self._machine = machine
        self._timing = timing
        self._update: bytes | None = None
        """What the trainer offered last, until it is known what became of it."""
        self._has_trained = False
        """Whether the trainer offers nothing more."""
        self._steps: RingSteps | None = None
        """Of the ring that is followed."""
        self._void: list[RingSteps] = []
        """Of rings before it."""
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

    # What arrives

    def offered(self, update: bytes) -> None:
        """The trainer has a part for a step."""
        self._update = update
        self.notify()

    def trained(self) -> None:
        """The trainer has done what it does in this round, or is gone."""
        self._has_trained = True
        self.notify()

    def notify(self) -> None:
        """Something happened: whoever waits looks again."""
        self._news.set()
        self._news = trio.Event()

    def follow(self, ring: Ring) -> RingSteps:
        """A ring begins, perhaps in place of another one: its steps begin where the round does."""
        if self._steps is not None:
            self._steps.is_void = True
            self._void.append(self._steps)
        self._steps = RingSteps(ring, self._me, self._committed, self)
        self.notify()
        return self._steps

    def close(self) -> None:
        """Nobody waits for this round any more."""
        self._scope.cancel()
        self.notify()

    # What is done

    async def run(self) -> None:
        """Takes steps as their finals come, and tells the trainer."""
        try:
            with self._scope:
                while True:
                    news = self._news
                    if self._steps is None or not await self._take_next(self._steps):
                        await news.wait()
        finally:
            self._ended.set()

    async def _take_next(self, steps: RingSteps) -> bool:
        """Says whether there was a step to be taken."""
        step, number = steps.num_taken, self._machine.number
        if step == steps.num_steps:
            return False
        average = self._machine.average_of(steps.ring_id, step)
        if average is None:
            return False
        committed = self._committed

        def take() -> None:
            if step == 0:  # of an earlier ring some steps may have been taken
                committed.begin_steps(number)
            committed.take_step(number, step, average)

        await self._run_in_thread(take)
        steps.taken(step, average)
        if self._update is not None and steps.has_part_in(step) and not steps.is_void:
            # My part went out with this step: the trainer goes on from where it led.
            self._update = None
            with trio.CancelScope(shield=True):  # the round may be over by now
                await self._trainer.share(taken=steps.is_in(average))
        self.notify()
        return True

    async def settle(self, averages: Sequence[Payload] | None) -> list[RingParts]:
        """After `close`, when the trainer has ended the round: tells it what became of a part whose
        step was not taken here. `averages`: of all steps, if the round is committed. Otherwise it
        may be yet, with that part. Returns the rings that I gave parts to, the newest last.
        """
        await self._ended.wait()
        steps, void = self._steps, self._void
        self._steps, self._void = None, []  # they know this round: what it held goes with it
        if steps is None:
            return []
        step = steps.num_taken
        if averages is not None:
            for later in range(step, steps.num_steps):
                steps.taken(later, averages[later])
        if self._update is not None and steps.has_part_in(step):
            self._update = None
            await self._trainer.share(taken=averages is None or steps.is_in(averages[step]))
        return [each.parts for each in (*void, steps) if each.has_given]

    async def part(self, steps: RingSteps, step: int, partial_sum_seconds: float | None) -> bytes:
        """What I have for a step; nothing if I am late. `partial_sum_seconds`: when its token
        came."""
        while not (steps.is_void or self.is_closed or steps.num_taken > step):
            wait_seconds = math.inf
            if steps.num_taken == step:
                if self._update is not None:
                    return self._update
                if self._has_trained:
                    break
                wait_seconds = (
                    self._give_up_seconds(steps, partial_sum_seconds) - trio.current_time()
                )
                if wait_seconds <= 0:
                    log.debug("too late for a step", step=step, ring=short(steps.ring_id))
                    break
            with trio.move_on_after(wait_seconds):
                await self._news.wait()
        return b""

    def _give_up_seconds(self, steps: RingSteps, partial_sum_seconds: float | None) -> float:
        """Local time at which the step after the newest one goes on without me."""
        if partial_sum_seconds is None:
            return steps.taken_seconds + self._timing.step_patience
        return max(partial_sum_seconds, steps.taken_seconds) + self._timing.partial_sum_patience

    def partial_sum_came(self, steps: RingSteps, step: int) -> None:
        """The others had their parts in a step."""
        if steps.num_taken == step:
            self._timing.took(trio.current_time() - steps.taken_seconds)


class RingSteps:
    """This peer's parts in the steps of one ring (a `Contribution`)."""

    def __init__(
        self, ring: Ring, me: PeerId, committed: CommittedState, shared: SharedStepRunner
    ) -> None:
        payloads = committed.payloads
        assert isinstance(payloads, SignPayloads)
        self._payloads = payloads
        self._position = ring.members.index(me)
        self._tokens = ring.ready[self._position].tokens
        self._shared = shared
        self._given: dict[int, bytes] = {}
        """What went into the token of each step, empty where I abstained."""
        self.ring_id: Digest = ring.ring_id
        self.num_steps = committed.sync_sets.whole.plan.num_chunks
        self.num_taken = 0
        self.taken_seconds = trio.current_time()
        """When the newest step was taken."""
        self.is_void = False
        """Whether another ring is followed."""
        self._num_out = 0
        """Parts that I gave, and that are out of the trainer's momentum."""

    def taken(self, step: int, average: Payload) -> None:
        """A step was taken."""
        # Of a ring that is void by now the trainer hears nothing: it offers the part again.
        self._num_out += self.is_in(average) and not self.is_void
        self.num_taken = step + 1
        self.taken_seconds = trio.current_time()

    @property
    def has_given(self) -> bool:
        """Whether I had something to give to any step."""
        return any(self._given.values())

    @property
    def parts(self) -> RingParts:
        """At the end of the round."""
        # Of one of which nothing is known the trainer was told that it was taken.
        num_out = self._num_out + (self.has_part_in(self.num_taken) and not self.is_void)
        num_given = sum(map(bool, self._given.values()))
        tokens = tokens_taken(self._tokens, num_out, self.num_steps)
        return RingParts(self.ring_id, tokens, has_left_out=num_out < num_given)

    def has_part_in(self, step: int) -> bool:
        """Whether I had something to give to a step."""
        return bool(self._given.get(step))

    def is_in(self, average: Payload) -> bool:
        """Whether a final has a part of mine."""
        return bool(self._payloads.contributors(average, None) >> self._position & 1)

    async def due(self, chunk: int, *, is_first: bool) -> None:
        """See `Contribution`: waits for the trainer, but not for long."""
        if chunk in self._given:
            return
        partial_sum_seconds = None
        if not is_first:
            partial_sum_seconds = trio.current_time()
            self._shared.partial_sum_came(self, chunk)
        part = await self._shared.part(self, chunk, partial_sum_seconds)
        # A token that came meanwhile may have got one already: nobody may have two of mine.
        self._given.setdefault(chunk, part)

    def add(self, chunk: int, payload: Payload | None) -> Payload:
        """See `Contribution`."""
        return add_record(payload, self._position, self._given[chunk])

    def finish_average(self, chunk: int, payload: Payload, mask: int) -> Payload:
        """See `Contribution`: everybody takes the step for himself."""
        return payload

    def error_of(self, chunk: int) -> FloatVector | None:
        """See `Contribution`: what was not sent is in the trainer's momentum."""
        return None
