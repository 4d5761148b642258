"""The tokenizer of an imported model: any file of the `tokenizers` library."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer as HuggingFaceTokenizer

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import ModelFiles, read_model_files
from gossamer.trainer.text.tokenizers.tokens import FileTokenizer, TokenizerKind
from gossamer.trainer.text.tokenizers.words import EncoderFile

if TYPE_CHECKING:
    from gossamer.trainer.text.sources.chat import Chat


class ImportedTokenizer(FileTokenizer):
    """Text to tokens and back as the model's authors have it.

    A document begins with what the file puts before a text (Llama 3: `<|begin_of_text|>`, most
    others: nothing) and ends with the end of a text. Text that spells a special token becomes that
    token, as with `transformers`.
    """

    kind: TokenizerKind = "files"

    def __init__(self, files: ModelFiles) -> None:
        """
        Raises:
            FolderError: `tokenizer.json` is damaged, or no token ends a text.
        """
        try:
            tokenizer = EncoderFile(files.tokenizer_json, specials_are_text=False).open()
        except Exception as error:  # the library raises nothing more precise
            raise FolderError(
                f"tokenizer.json is damaged: {error}; copy or download it again"
            ) from error
        numbers = tokenizer.get_vocab(with_added_tokens=True).values()
        self.vocabulary = max(numbers, default=0) + 1
        self._files = files
        self.end_token = self._end_token(tokenizer)
        before = list(tokenizer.encode("").ids)
        if self.end_token in before:
            before = before[: before.index(self.end_token)]
        self.begin_tokens = tuple(before)
        super().__init__(tokenizer, EncoderFile(files.tokenizer_json, False, self.begin_tokens))
        self.stop_tokens = frozenset([self.end_token, *files.token_ids("eos_token_id")])
        """Tokens at which generation stops: instruction models have one for a turn besides."""

    @cached_property
    def file(self) -> bytes:
        """The block with all small files of the model. Packing takes seconds with a large one."""
        return self._files.pack()

    def _end_token(self, tokenizer: HuggingFaceTokenizer) -> int:
        named = self._files.named_token("eos_token")
        number = None if named is None else tokenizer.token_to_id(named)
        if number is None:
            number = next(iter(self._files.token_ids("eos_token_id")), None)
        if number is None or not 0 <= number < self.vocabulary:
            raise FolderError(
                "no token ends a text: tokenizer_config.json must name an eos_token that "
                "tokenizer.json has"
            )
        return int(number)

    def chat(self) -> Chat:
        """Returns the part that writes conversations with the model's chat template.

        Raises:
            FolderError: the model has none.
            CorpusError: it is no Jinja program.
        """
        from gossamer.trainer.text.sources.chat import Chat  # here: it loads Jinja

        template = self._files.chat_template
        if template is None:
            raise FolderError(
                "the tokenizer has no chat template, which says how conversations are written: "
                "begin with the instruction model of the family, put its chat_template.jinja "
                'into the folder, or train on plain text (corpus.format = "text")'
            )
        return Chat(template, self._files.special_tokens, self._tokenizer, self.end_token)


def tokenizer_of(folder: Path, model: ModelConfig) -> ImportedTokenizer:
    """The tokenizer in a model's folder. Raises FolderError: it is damaged, or of another model."""
    try:
        tokenizer = ImportedTokenizer(read_model_files(folder))
    except FolderError as error:
        raise error.of(folder) from error
    if tokenizer.vocabulary > model.vocabulary:
        raise FolderError(
            f"{folder}: tokenizer.json has tokens up to {tokenizer.vocabulary - 1}, and the "
            f"model's vocab_size is {model.vocabulary}: they do not belong together"
        )
    return tokenizer
