"""The rest of a founder's corpus, of which the run has the first part: what is noted of it on disk,
and cutting one part of it.

    corpus_rest     the plan of the parts; it is there until all of them are cut

A part is a function of the files, the plan and the run's tokenizer. So a part that was being cut
when the node died is cut again, and comes out the same.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from gossamer.node.base.disk_health import write_atomically
from gossamer.node.runs.founding.file_names import pack, unpack
from gossamer.node.storage.bounded_file import read_bounded
from gossamer.node.storage.state_dir import StateDirError
from gossamer.protocol.limits import MIB
from gossamer.protocol.manifest import Manifest
from gossamer.protocol.shard_index import ShardInfo
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer
from gossamer.trainer.text.corpus_parts import CorpusPlan, PartWish, cut_part
from gossamer.trainer.text.shards import Put
from gossamer.trainer.text.sources.corpus import Progress, no_progress, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import NoTextError, Skipped
from gossamer.trainer.text.tokenizers.tokens import load_tokenizer

_FILE_BYTES_MAX = 256 * MIB
"""A path and some 10 bytes a section, for each of a million files: far more than a plan has."""


class RestOfCorpus(msgspec.Struct, frozen=True):
    """A corpus whose first part is cut."""

    plan: CorpusPlan
    text_field: str
    seed: int
    heldout_keys: bytes
    """Keys of the held-out documents, little-endian uint64."""
    skip_bad: bool


class RestFile:
    """The plan in one state directory."""

    def __init__(self, root: Path) -> None:
        self._path = root / "corpus_rest"

    def write(self, rest: RestOfCorpus) -> None:
        """Raises DiskError."""
        write_atomically(self._path, pack(rest))

    def read(self) -> RestOfCorpus | None:
        """Returns the plan; None if there is nothing left to cut.

        Raises:
            StateDirError: the file is damaged.
        """
        try:
            data = read_bounded(self._path, _FILE_BYTES_MAX)
            rest: RestOfCorpus | None = None if data is None else unpack(data, RestOfCorpus)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StateDirError(
                f"the plan of the corpus in {self._path} is damaged ({error}): the run goes on "
                "with the data that it has. To end this message, remove the file"
            ) from error
        return rest

    def remove(self) -> None:
        """All parts are cut, or there are none."""
        self._path.unlink(missing_ok=True)


def expected_tokens(plan: CorpusPlan, manifest: Manifest) -> int:
    """Estimates the tokens of the whole corpus from those of the first part."""
    return manifest.data.num_tokens * plan.num_bytes() // plan.num_bytes(1)


def cut_rest(
    rest: RestOfCorpus,
    number: int,
    manifest: Manifest,
    tokenizer_file: bytes,
    *,
    put: Put,
    scratch: Path,
    progress: Progress = no_progress,
) -> tuple[tuple[ShardInfo, ...], list[str]]:
    """Cuts one of the later parts into shards, which `put` keeps.

    Args:
        number: of the part, 1 or more.
        tokenizer_file: the block of the run's tokenizer; empty for plain bytes.
        scratch: folder on a disk with room for what compressed files and conversations hold.

    Returns:
        The shards, none if the part has no text, and sentences about what was left out.

    Raises:
        MalformedError, FolderError: the tokenizer cannot be used.
        CorpusError: the text cannot be read.
    """
    data, model = manifest.data, manifest.model
    imported = ImportedTokenizer(unpack_model_files(tokenizer_file)) if model.imported else None
    skipped = Skipped() if rest.skip_bad else None
    wish = PartWish(
        data.token_bytes,
        model.context,
        expected_tokens(rest.plan, manifest),
        np.frombuffer(rest.heldout_keys, dtype="<u8"),
    )
    tokenizer = imported or load_tokenizer(data.tokenizer, tokenizer_file)
    try:
        corpus = scan_corpus(
            rest.plan.part(number),
            seed=rest.seed,
            text_field=rest.text_field,
            scratch=scratch,
            skipped=skipped,
            chat=imported.chat() if imported is not None and data.messages else None,
            progress=progress,
        )
        shards = cut_part(corpus, wish, tokenizer, put=put, progress=progress)
    except NoTextError:  # a packed file may have less text than was planned
        shards = ()
    return shards, skipped.summary() if skipped else []
