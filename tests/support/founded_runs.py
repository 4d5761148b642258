"""A founded run in one call, without a daemon."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gossamer.node.network.identity import Identity
from gossamer.node.runs.founding.founding import FoundedRun, prepare_data, sign_manifest
from gossamer.node.runs.planning.draft import Draft
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.digest import FloatVector
from gossamer.trainer.text.shards import Put


def found_run(
    draft: Draft,
    corpus: Sequence[Path],
    *,
    identity: Identity,
    put: Put,
    init_genesis: Callable[[ModelConfig, int], FloatVector],
    created_unix_seconds: int | None = None,
) -> FoundedRun:
    """Founds a run from text: its data, the initial weights, and the signed manifest.

    Raises:
        ManifestError: values of the draft are not allowed.
        CorpusError: the text cannot be read, or there is too little of it.
    """
    data = prepare_data(draft, corpus, put=put)
    parameters = init_genesis(draft.model, draft.seed)
    return sign_manifest(
        draft, data, parameters, identity=identity, created_unix_seconds=created_unix_seconds
    )
