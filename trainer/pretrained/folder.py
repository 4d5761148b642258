"""A Hugging Face folder with a model to begin a run from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import ModelFiles, read_model_files
from gossamer.trainer.pretrained.weights import StoredWeights, find_weights


@dataclass(frozen=True)
class Pretrained:
    """A model that is checked and not read yet."""

    folder: Path
    model: ModelConfig
    """With the longest context that the model was made for."""
    files: ModelFiles
    weights: StoredWeights


def open_pretrained(folder: Path) -> Pretrained:
    """Checks a folder but for its tokenizer (`tokenizer.tokenizer_of`) and the values of its
    weights, and allocates nothing large.

    Raises:
        FolderError: the model cannot be trained here, or the folder is damaged; one sentence each.
    """
    files = read_model_files(folder)
    try:
        model = model_of_config(files.config)
    except FolderError as error:
        raise error.of(folder) from error
    return Pretrained(folder, model, files, find_weights(folder, model))
