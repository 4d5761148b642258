"""A committed state as it lies in a state directory, read beside a running daemon.

The directory is read without its lock. If the daemon removes a block meanwhile, the next attempt
finds the newer state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gossamer.node.base.settings.settings import Settings
from gossamer.node.runs.manifest_here import manifest_here
from gossamer.node.runs.rounds_here import rounds_here, spans_text, way_to
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.blocks import BlockStore
from gossamer.node.storage.chain.chain_tree import Entry
from gossamer.node.storage.state.committed import CommittedState
from gossamer.node.storage.state.restoring import open_read_only, rebuild, restore
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.errors import RemoteProtocolError
from gossamer.protocol.ids import Digest
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.protocol.state.frozen_weights import decode_list, values_of
from gossamer.trainer.adapters import merged

ATTEMPTS_MAX = 5
"""A running daemon discards old blocks once a checkpoint, so five misses in a row are an error."""


@dataclass(frozen=True)
class StateOnDisk:
    """A committed state and what belongs to it."""

    manifest: Manifest
    entry: Entry
    model: ModelConfig
    """The model that has these parameters: of a run of adapters the whole one, unless they alone
    were read."""
    parameters: FloatVector
    """(model.num_parameters,)"""
    is_newest: bool
    """False if the disk names a newer state that it does not have whole."""
    tokenizer: bytes | None
    """Block with the tokenizer or with the files of an imported model; None for plain bytes."""


def read_state(
    settings: Settings, round_number: int | None = None, *, adapters_alone: bool = False
) -> StateOnDisk:
    """Reads the newest state of a state directory, or that after a round. Adapters are merged with
    the weights that they belong to, unless they are wanted alone.

    Raises:
        StateDirError: there is no run, no such round, or the disk has too little to rebuild it.
    """
    state_dir = StateDir(settings.state_dir)
    manifest = manifest_here(state_dir)
    is_newest = True
    problem = "start the node until it has joined, and try again"
    for attempt in range(ATTEMPTS_MAX):
        # The head before the records and the blocks: a daemon writes them in the other order. On a
        # machine with too much to do rounds may be committed while either is opened, every time.
        newest = state_dir.newest_head()
        committed, store = open_read_only(manifest, state_dir, settings.cache_bytes)
        try:
            if round_number is None:
                is_here = restore(committed)
                is_newest = newest in (None, committed.head)
                if is_here and not is_newest and attempt < ATTEMPTS_MAX - 1:
                    continue  # the daemon has discarded blocks meanwhile, or is on another branch
            else:
                way = way_to(committed, newest)
                target = _head_after(committed, way, round_number)
                is_here = rebuild(committed, target) and committed.head == target
                problem = "" if is_here else _what_to_name(committed, way)
            if not is_here:
                continue
            digest = manifest.data.tokenizer_digest
            tokenizer = store.get(Digest(digest)) if digest else None
        except BlockError:
            continue
        model, parameters = manifest.model, committed.parameters
        if model.lora and not adapters_alone:
            parameters = _merged(parameters, manifest, model.lora, store)
            model = model.whole
        return StateOnDisk(manifest, committed.entry, model, parameters, is_newest, tokenizer)
    what = "no committed state" if round_number is None else f"the state after round {round_number}"
    verb = "can be" if round_number is None else "cannot be"
    raise StateDirError(f"{what} {verb} rebuilt from {state_dir.root}: {problem}")


def _merged(
    adapters: FloatVector, manifest: Manifest, lora: LoraConfig, store: BlockStore
) -> FloatVector:
    """Returns the parameters of the whole model. Raises StateDirError if they are not all here."""

    def frozen() -> Iterator[FloatVector]:
        digest = Digest(manifest.data.frozen_digest or b"")
        for block in decode_list(store.get(digest), manifest.model):
            yield values_of(store.get(block), lora)

    try:
        return merged(adapters, manifest.model, frozen())
    except (BlockError, ValueError, RemoteProtocolError) as error:
        raise StateDirError(
            f"the weights that the adapters belong to are not whole in {store.root}: {error}. "
            "Start the node, which fetches what is missing, and try again"
        ) from error


def warn_if_older(state: StateOnDisk) -> None:
    """Says on stderr that a state is older than the newest one of its disk."""
    if not state.is_newest:
        print(
            f"the newest state is not whole on this disk: this is round {state.entry.round}",
            file=sys.stderr,
        )


def _head_after(committed: CommittedState, way: Sequence[Digest], round_number: int) -> Digest:
    """Returns the head of a round on the way. Raises StateDirError if it has none."""
    first = committed.chain.entry(way[0]).round
    if not first <= round_number < first + len(way):
        oldest = f", the oldest {first}" if first else ""
        raise StateDirError(
            f"there is no round {round_number} here: the newest one is "
            f"{first + len(way) - 1}{oldest}"
        )
    return way[round_number - first]


def _what_to_name(committed: CommittedState, way: Sequence[Digest]) -> str:
    """Returns what to do if the state of a round cannot be rebuilt."""
    possible = rounds_here(committed, way)
    if not possible:
        return "start the node until it has joined, and try again"
    newest_round = committed.chain.entry(way[-1]).round
    return f"name {spans_text(possible, newest_round)}, or leave the round out"
