"""Runs a swarm of whole nodes through the faults of one seed, in virtual time, and checks it.

The nodes are those of the daemon, with all that it does but libp2p, HTTP and torch (`node_world`).

At any time
- All peers at one head have the same bits of parameters and momentum, those that the header names.
- No peer moves to a head that weighs less than its own, where the two part, while it lives.
- Nothing is logged as an error, and nothing raises.

In the end, when everything has healed
- All that live are soon in one ring again, and commit some rounds on one head. Where more are
  behind strict routers than the others may relay for, each has its turn within some rounds.
  Parts of which none has half of the stake stay apart if they part by more rounds than one undoes:
  rounds take half a second here, and to dial a peer again takes ten.
- All know all data that the founder added, wherever they were then.
- Along its chain every piece of data is told once, without a gap; and with shared steps no member
  has more tokens than a round has.
- Each account balances, and says what the chain says.
"""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import trio

from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.state.chain import Header
from tests.support.added_data import data_of
from tests.support.node_world import (
    MODEL,
    SUMS_TOP_K,
    World,
    assert_account_is_true,
    headers_of,
    settled,
    simulate,
)
from tests.support.sum_verdicts import verdicts_of
from tests.swarms.swarm_faults import LOOK_SECONDS, SwarmFaults, until
from tests.swarms.swarm_story import IN_STEPS, SwarmStory, draw

LIVENESS_SECONDS = 90.0
"""From the healing to the new rounds of all: the reunion of those who were cut off, at most a
newcomer's way to the head, and two rounds for which no peer may have to wait."""

ROUNDS_AFTER = 3
"""Rounds that all that live commit on one head, after the healing."""

ROUNDS_OF_TURNS = 40
"""Rounds within which each member was in a ring, if there is no room for all in one. Those that sit
out are drawn in each round: with one public peer and five others, two of those sit, and the chance
that any of them sits in all these rounds is below 1e-14."""


class Observer:
    """Compares the states of all nodes while they run."""

    def __init__(self, world: World, faults: SwarmFaults) -> None:
        self._world = world
        self._faults = faults
        self._states: dict[Digest, tuple[Digest, str]] = {}
        self._heads: dict[trio.lowlevel.Task, Digest] = {}

    async def run(self) -> None:
        while True:
            for name in sorted(set(self._faults.living()) - self._faults.frozen):
                self._look_at(name)
            await trio.sleep(LOOK_SECONDS)

    def _look_at(self, name: str) -> None:
        participant = self._world.participant_or_none(name)
        if participant is None or not participant.context.committed.is_loaded:
            return
        committed, choice = participant.context.committed, participant.context.choice
        life, head = self._world.tasks[name], committed.head
        before = self._heads.get(life, head)
        fork = choice.fork_of(head, before)
        weights = choice.weight(fork, head), choice.weight(fork, before)
        assert weights[0] >= weights[1], f"{name} moved to a lighter head: {weights}"
        self._heads[life] = head
        digest = digest_of(committed.parameters.tobytes() + committed.momentum.tobytes())
        known, other = self._states.setdefault(committed.head, (digest, name))
        assert digest == known, f"{name} and {other} have one head and two states"
        assert committed.index is not None
        assert committed.index.digest == committed.entry.state_digest


class Errors(logging.Handler):
    """What is logged as an error: a bug, in a world where no disk fails."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


CODECS = {"fragments": "fp32", "sparse sums": "sparse", "signed steps": "distro"}
"""Of the modes that are not named after theirs."""


def replay(seed: int, mode: str) -> str:
    """The command that shows what happened."""
    return (
        f"python -m tests.swarms.run --mode {shlex.quote(mode)} --start {seed} --seeds 1 --verbose"
    )


def run_seed(seed: int, mode: str = "distro", *, verbose: bool = False) -> Counter[str]:
    """Runs one seed's swarm to its end; what happened in it. Raises where something is wrong."""
    with tempfile.TemporaryDirectory(prefix="swarm-") as folder:
        return _run(draw(seed, mode), Path(folder), verbose)


def _run(story: SwarmStory, folder: Path, verbose: bool) -> Counter[str]:
    world = World(
        folder,
        seed=story.seed,
        codec=CODECS.get(story.mode, story.mode),
        trust="open" if story.mode == "signed steps" else "members",
        step_chunks=story.step_chunks,
        top_k=SUMS_TOP_K if story.mode == "sparse sums" else 64,
        fragments=2 if story.mode == "fragments" else 1,
        overlap=story.overlap,
        inner_steps=story.inner_steps,
        latency_seconds=story.latency_seconds,
        wait_for_peers=len(story.first_names) - 1 if story.is_founded_together else 0,
        data_grow=bool(story.data_seconds),
    )
    counts: Counter[str] = Counter()

    def note(text: str) -> None:
        if verbose:
            print(f"{trio.current_time():8.2f}  {text}")

    async def tell(nursery: trio.Nursery) -> None:
        faults = SwarmFaults(world, story, nursery, note)
        observer = Observer(world, faults)
        nursery.start_soon(observer.run)
        await faults.found()
        await faults.run()
        counts.update(faults.counts)
        names = faults.living()
        goal = max(map(world.round, names)) + ROUNDS_AFTER
        healed = trio.current_time()

        def num_parts_of(name: str) -> int:
            data = data_of(world, name)
            return 0 if data is None else len(data.parts.parts)

        def is_well() -> bool:
            if any(num_parts_of(name) < len(story.data_seconds) for name in names):
                return False
            nodes = [world.participant_or_none(name) for name in names]
            heads = {node.context.committed.head if node is not None else None for node in nodes}
            first = nodes[0]
            if len(heads) > 1 or first is None or world.round(names[0]) < goal:
                return False
            num_newest = 1 if story.have_room_in_one_ring(names) else ROUNDS_OF_TURNS
            newest = headers_of(world, names[0])[goal - ROUNDS_AFTER :][-num_newest:]
            members = {member.peer_id for header in newest for member in header.members}
            return members == {world.identity(name).peer_id for name in names}

        try:
            await until(is_well, LIVENESS_SECONDS)
        except trio.TooSlowError:
            if stay_apart(world, names):
                counts["swarms that stay apart"] += 1
                return
            where = {name: (world.round(name), num_parts_of(name)) for name in names}
            raise AssertionError(
                f"no round {goal} of all {LIVENESS_SECONDS:g} s after the healing (round and "
                f"added parts of each): {where}"
            ) from None
        note(f"one ring again after {trio.current_time() - healed:.1f} s")
        counts["seconds to one ring"] += round(trio.current_time() - healed)
        await settled(world, *names)
        world.assert_one_chain(*names)
        check_chain(story, headers_of(world, names[0]))
        for name in names:
            assert_account_is_true(world, name)
        verdicts = {verdict for name in names for verdict in verdicts_of(world, name)}
        assert not any(each.is_replaced for each in verdicts), "an honest member is blamed"
        counts["sums added up again"] += sum(audits_of(world, name, "good") for name in names)
        # One that followed another ring cannot open its part, and one verdict has no consequence.
        counts["members named that opened nothing"] += len(verdicts)
        counts["rounds"] += world.round(names[0])
        counts["parts of the data added"] += len(story.data_seconds)
        counts["rounds on added data"] += sum(
            any(span.partition >= world.num_shards for span in header.spans)
            for header in headers_of(world, names[0])
        )

    errors = Errors()
    logging.getLogger().addHandler(errors)
    try:
        simulate(world, tell)
    finally:
        logging.getLogger().removeHandler(errors)
    assert not errors.texts, "\n".join(errors.texts)
    return counts


def stay_apart(world: World, names: Sequence[str]) -> bool:
    """Whether two peers know each other's chains, and each may keep its own (decision 59)."""
    nodes = [node.context for node in map(world.participant_or_none, names) if node is not None]
    return any(
        not one.choice.may_undo(one.committed.head, other.committed.head)
        and not one.choice.may_undo(other.committed.head, one.committed.head)
        for one, other in combinations(nodes, 2)
    )


def audits_of(world: World, name: str, verdict: str) -> int:
    """How often a node came to a verdict, in its present life."""
    registry = world.nodes[name].first.metrics.registry
    return int(registry.get_sample_value("gossamer_audits_total", {"verdict": verdict}) or 0)


def check_chain(story: SwarmStory, headers: list[Header]) -> None:
    """AssertionError unless every piece of data is told once, and tokens are those of rounds.

    The data of what a ring lost is told, and its tokens are not, so a header's need not be equal;
    those of a round of shared steps are told one round later.
    """
    told: dict[int, int] = {}
    step_tokens = 2 * MODEL.context
    for header in headers:
        for span in header.spans:
            assert span.start == told.get(span.partition, 0), "gap or overlap in a shard"
            told[span.partition] = span.stop
        if story.mode in IN_STEPS:
            for member in header.members:
                # A member may have a part in some chunks of a step alone.
                assert member.tokens * story.step_chunks % step_tokens == 0
                assert member.tokens <= story.inner_steps * step_tokens
    assert sum(header.tokens for header in headers) == headers[-1].tokens_total
