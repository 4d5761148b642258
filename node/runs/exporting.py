"""Export of the newest committed state of a state directory as a Hugging Face model.

The export reads the directory without its lock, so that a running daemon can go on. If the daemon
removes a block during the export, the next attempt finds the newer state.
"""

from __future__ import annotations

from pathlib import Path

from gossamer.node.base.settings import Settings
from gossamer.node.base.terminal import open_console
from gossamer.node.peers.run_exchange import open_signed_manifest
from gossamer.node.storage.block_files import BlockError
from gossamer.node.storage.committed import CommittedState
from gossamer.node.storage.restoring import open_read_only, restore
from gossamer.node.storage.state_dir import StateDir, StateDirError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest

ATTEMPTS_MAX = 5
"""A running daemon discards old blocks once a checkpoint, so five misses in a row are an error."""


def export_state(settings: Settings, directory: Path) -> int:
    """Writes the model to `directory` and returns the exit status.

    Raises:
        StateDirError: there is no run, or the disk has too little to rebuild a state.
        ExportError: the folder cannot be written.
    """
    # Imported here, because they load safetensors and tokenizers.
    from gossamer.trainer.export import byte_tokenizer_json, export_model
    from gossamer.trainer.text.tokens import END_OF_DOCUMENT

    state_dir = StateDir(settings.state_dir)
    signed = state_dir.read_manifest()
    if signed is None:
        raise StateDirError(
            f"there is no run in {state_dir.root}; name another directory with --state-dir"
        )
    manifest = open_signed_manifest(signed)
    committed, tokenizer = _read_state(state_dir, manifest, settings)
    tokenizer = tokenizer or byte_tokenizer_json()
    export_model(
        committed.parameters, manifest.model, tokenizer, directory, end_token=END_OF_DOCUMENT
    )
    entry = committed.entry
    open_console().print(
        f"round {entry.round}, head {entry.head.hex()[:16]}, state "
        f"{entry.state_digest.hex()[:16]} written to {directory}"
    )
    return 0


def _read_state(
    state_dir: StateDir, manifest: Manifest, settings: Settings
) -> tuple[CommittedState, bytes | None]:
    for _ in range(ATTEMPTS_MAX):
        committed, store = open_read_only(manifest, state_dir, settings.cache_bytes)
        try:
            if not restore(committed):
                continue
            digest = manifest.data.tokenizer_digest
            return committed, store.get(Digest(digest)) if digest else None
        except BlockError:
            continue
    raise StateDirError(
        f"no committed state can be rebuilt from {state_dir.root}: start the node until it has "
        "joined, and try again"
    )
