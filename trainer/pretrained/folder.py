"""A Hugging Face folder with a model to begin a run from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gossamer.protocol.manifest import ModelConfig
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import ModelFiles, read_model_files
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer
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
    """Checks everything in a folder but the values of the weights, and allocates nothing large.

    Raises:
        FolderError: the model cannot be trained here, or the folder is damaged; one sentence each.
    """
    files = read_model_files(folder)
    try:
        model = model_of_config(files.config)
        tokenizer = ImportedTokenizer(files)
    except FolderError as error:
        raise FolderError([f"{folder}: {problem}" for problem in error.problems]) from error
    if tokenizer.vocabulary > model.vocabulary:
        raise FolderError(
            [
                f"{folder}: tokenizer.json has tokens up to {tokenizer.vocabulary - 1}, and the "
                f"model's vocab_size is {model.vocabulary}: they do not belong together"
            ]
        )
    return Pretrained(folder, model, files, find_weights(folder, model))
