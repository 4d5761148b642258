"""The files of a run that its trainer reads by path: blocks, named by their digests."""

from __future__ import annotations

from pathlib import Path

import structlog

from gossamer.node.storage.block_files import path_of
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.state.frozen_weights import decode_list

log = structlog.get_logger("trainer")


def tokenizer_path(manifest: Manifest, blocks: Path) -> str:
    """Returns the file of the run's tokenizer; empty for plain bytes."""
    digest = manifest.data.tokenizer_digest
    return str(path_of(blocks, Digest(digest))) if digest else ""


def frozen_paths(manifest: Manifest, blocks: Path) -> tuple[str, ...]:
    """Returns the files of the weights that adapters leave as they are; none if their list cannot
    be read, which the worker tells when it is to use them."""
    assert manifest.data.frozen_digest
    path = path_of(blocks, Digest(manifest.data.frozen_digest))
    try:
        digests = decode_list(path.read_bytes(), manifest.model)
    except (OSError, MalformedError) as error:
        log.error("the list of the run's frozen weights cannot be read", error=str(error))
        return ()
    return tuple(str(path_of(blocks, digest)) for digest in digests)
