"""Counts the bytes of text behind the tokens that a trainer works on, for losses in bits a byte."""

from __future__ import annotations

import logging
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.text.tokenizers.token_lengths import (
    TokenLengths,
    lengths_of_bytes,
    lengths_of_file,
)

log = logging.getLogger(__name__)


class TextBytes:
    """Counts with the run's tokenizer, whose file is read at the first use."""

    def __init__(self, config: TrainerConfig) -> None:
        self._tokenizer, self._path = config.tokenizer, config.tokenizer_path
        self._num_rows = config.model.vocabulary

    def of_targets(self, sequences: NDArray[np.int64]) -> int:
        """Returns the bytes of text that the model is trained to write in some sequences; 0 if they
        cannot be counted.

        Args:
            sequences: (num_sequences, T + 1), see `Batch`.
        """
        if self._lengths is None:
            return 0
        targets = sequences[:, 1:]
        if targets.size and int(targets.max()) >= PROMPT_BIT:
            targets = targets[targets < PROMPT_BIT]
        return int(self._lengths[targets].sum(dtype=np.int64))

    @cached_property  # a file that cannot be read is told once
    def _lengths(self) -> TokenLengths | None:
        try:
            if self._tokenizer == "bytes":
                return lengths_of_bytes(self._num_rows)
            if not self._tokenizer:
                return None
            block = Path(self._path).read_bytes()
            if self._tokenizer == "files":
                block = unpack_model_files(block).tokenizer_json
            return lengths_of_file(block, self._num_rows)
        except (OSError, MalformedError) as error:
            log.warning("losses in bits per byte are not told: %s", error)
            return None
