"""Continuing a text with a model, token by token: the work of the process `generate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from gossamer.protocol.errors import MalformedError
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.generation.chat_template import ChatTemplate, TemplateError
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.generation import Done, GenerateText, LoadModel, Refused, Text
from gossamer.trainer.layers import KeyValues
from gossamer.trainer.model import Decoder
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer
from gossamer.trainer.resources.device import Device, DeviceError, is_out_of_memory, take_device
from gossamer.trainer.text.tokenizers.tokens import (
    Tokenizer,
    TokenizerKind,
    TokenVector,
    load_tokenizer,
)

CONTEXT_MAX = 32_768
"""Tokens that are kept at most. With published shapes their keys and values take some gigabytes."""

_CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"

_DECODED_BEFORE = 8
"""Tokens that are decoded once more before new ones, or a few more: some decoders treat the first
token of a text in another way."""

_CHARACTER_TOKENS_MAX = 4
"""Tokens of a character, if it has one for each of its bytes."""


class GenerationError(ValueError):
    """No text can be generated. The message says why."""


class RequestError(GenerationError):
    """A text that this model cannot continue. It may well continue others."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizer of a run and what belongs to it."""

    tokenizer: Tokenizer
    stops: frozenset[int]
    """Tokens at which a text ends."""
    context: int
    """The longest context of the model."""
    num_rows: int
    """Tokens that the model knows."""
    template: ChatTemplate | None

    def encode(self, request: GenerateText) -> list[int]:
        """Returns the tokens before the answer."""
        if not request.messages:
            (prompt,) = self.tokenizer.encode([request.prompt.encode()])
            return prompt.tolist() or [self.tokenizer.end_token]  # after one text another begins
        if self.template is None:
            raise RequestError(
                "the model has no chat template, so that it does not know what a chat is: use "
                "completions"
            )
        return self.template.encode(request.messages)


class TextModel:
    """A model that continues texts."""

    def __init__(self, decoder: Decoder, device: Device, vocabulary: Vocabulary) -> None:
        self._decoder = decoder
        self._device = device
        self._vocabulary = vocabulary

    def answer(
        self, request: GenerateText, is_stopped: Callable[[], bool] = lambda: False
    ) -> Iterator[Text | Done]:
        """Pieces of the continuation as they come, and at last Done.

        Args:
            is_stopped: whether nobody wants the rest; asked after each token.

        Raises:
            RequestError: the request cannot be answered.
            GenerationError: the model cannot be run.
        """
        vocabulary, context = self._vocabulary, self._vocabulary.context
        tokens = vocabulary.encode(request)
        if max(tokens) >= vocabulary.num_rows:
            raise GenerationError("the run's tokenizer has tokens that its model does not have")
        if not request.beyond_context and len(tokens) >= context:
            raise RequestError(
                f"the prompt has {len(tokens):,} tokens; the model takes {context:,} "
                "together with the answer"
            )
        sampler = _Sampler(self._decoder, self._device, vocabulary, request)
        pieces = _texts(vocabulary.tokenizer, tokens, sampler.sampled(tokens, is_stopped))
        ended = False
        for piece, is_end in _until_stop(pieces, request.stops):
            ended = is_end
            if piece:
                yield Text(piece)
        is_stop = ended or sampler.has_ended or is_stopped()
        yield Done(
            reason="stop" if is_stop else "length",
            prompt_tokens=len(tokens),
            tokens=sampler.num_drawn,
        )


class Continuation(TextModel):
    """A model of its own, with parameters from shared memory."""

    def __init__(self, task: LoadModel) -> None:
        """
        Raises:
            GenerationError, DeviceError: see there.
            MalformedError, FolderError: the run's tokenizer is damaged.
        """
        self._task = task
        vocabulary = load_vocabulary(task.model, task.tokenizer, task.tokenizer_block)
        device = take_device(task.device)
        # A copy, because a device has memory of its own.
        model = msgspec.structs.replace(task.model, context=vocabulary.context)
        super().__init__(Decoder(model, device.torch_device), device, vocabulary)
        self.reload()

    def reload(self) -> None:
        """Takes the parameters that are in the shared memory now."""
        shared = memory.open_vector(self._task.base_fd, self._task.model.num_parameters)
        self._decoder.flat.copy_(torch.from_numpy(shared))


def load_vocabulary(model: ModelConfig, kind: TokenizerKind, block: bytes) -> Vocabulary:
    """Returns the tokenizer of a run. `block`: the one that its manifest names; empty for bytes.

    Raises:
        MalformedError, FolderError: the tokenizer is damaged.
    """
    if kind != "files":
        tokenizer = load_tokenizer(kind, block)
        stops = frozenset([tokenizer.end_token])
        return Vocabulary(tokenizer, stops, model.context, model.vocabulary, template=None)
    files = unpack_model_files(block)
    imported = ImportedTokenizer(files)
    longest = max(model.context, model_of_config(files.config).context)
    text = files.chat_template
    template = None if text is None else ChatTemplate(text, files)
    context = min(longest, CONTEXT_MAX)
    return Vocabulary(imported, imported.stop_tokens, context, model.vocabulary, template)


class _Sampler:
    """Draws the tokens of one answer."""

    def __init__(
        self, decoder: Decoder, device: Device, vocabulary: Vocabulary, request: GenerateText
    ) -> None:
        self._decoder, self._device = decoder, device
        self._vocabulary, self._request = vocabulary, request
        self.num_drawn = 0
        self.has_ended = False
        """Whether the model ended the text."""

    @torch.no_grad()
    def sampled(self, tokens: list[int], is_stopped: Callable[[], bool]) -> Iterator[int]:
        """Tokens behind `tokens`, until one ends the text, there are as many as were asked for, or
        nobody wants more."""
        request, context = self._request, self._vocabulary.context
        random = torch.Generator().manual_seed(request.seed)
        tokens = tokens[-context:]
        past: list[KeyValues] | None = None
        while self.num_drawn < request.tokens and not is_stopped():
            if past is None or past[0].length == context:
                if past is not None and not request.beyond_context:
                    return
                # Full: the newer half begins anew, because positions count from the first token.
                tokens = tokens[-max(1, context // 2) :] if past is not None else tokens
                past = [KeyValues(context) for _ in self._decoder.layers]
                given = tokens
            else:
                given = tokens[-1:]
            inputs = torch.tensor([given], device=self._device.torch_device)
            with self._device.autocast():
                logits = self._decoder.next_logits(inputs, past)[0].float().cpu()
            number = _choose(logits[: self._vocabulary.tokenizer.vocabulary], request, random)
            self.num_drawn += 1
            if number in self._vocabulary.stops:
                self.has_ended = True
                return
            tokens.append(number)
            yield number


def _choose(logits: Tensor, request: GenerateText, random: torch.Generator) -> int:
    """A token by its probability at a temperature, (V,) -> a number below V."""
    if not bool(torch.isfinite(logits).all()):
        raise GenerationError("the model computes values that are not finite: it has diverged")
    if request.temperature == 0:
        return int(logits.argmax())
    # What is likeliest stays at 0, and is finite at any temperature.
    logits = logits.double()
    probabilities = torch.softmax((logits - logits.max()) / request.temperature, 0)
    if request.top_p < 1:
        ordered, places = probabilities.sort(descending=True, stable=True)
        is_out = ordered.cumsum(0) - ordered >= request.top_p
        is_out[0] = False  # the likeliest token stays, however small `top_p` is
        probabilities[places[is_out]] = 0.0
    return int(torch.multinomial(probabilities, 1, generator=random))


def _texts(tokenizer: Tokenizer, before: list[int], numbers: Iterator[int]) -> Iterator[str]:
    """The text of tokens in pieces. A piece that ends in half a character waits for the rest, for
    as long as that may come."""
    tokens = _last_of(tokenizer, before)
    said = tokenizer.decode(_vector(tokens))
    ends = [0, len(tokens)]
    """Places in `tokens` at which no character is cut, in ascending order."""
    for number in numbers:
        tokens.append(number)
        text, end = tokenizer.decode(_vector(tokens)), len(tokens)
        if text.endswith(_CUT_CHARACTER):
            # No character begins before the last tokens and is still cut: it would be whole.
            end -= _CHARACTER_TOKENS_MAX - 1
            if end <= ends[-1]:
                continue
            text = tokenizer.decode(_vector(tokens[:end]))
        yield _added(tokenizer, text, said, tokens[ends[-1] : end])
        ends.append(end)
        # Only the newest tokens are decoded again, or a long text would take ever longer. They
        # begin with a whole character: some decoders spoil all of a run of bytes without one.
        first = max(place for place in ends if place <= max(0, end - _DECODED_BEFORE))
        tokens = tokens[first:]
        ends = [place - first for place in ends if place >= first]
        said = tokenizer.decode(_vector(tokens[: ends[-1]]))
    text = tokenizer.decode(_vector(tokens))
    if text != said:
        yield _added(tokenizer, text, said, tokens[ends[-1] :])


def _added(tokenizer: Tokenizer, text: str, said: str, tokens: list[int]) -> str:
    """What is new in a text: what its newest tokens stand for."""
    if text.startswith(said):
        return text[len(said) :]
    # Half a character, to which the rest did not come, spoils the whole ones before it in a run of
    # bytes. They have been said.
    return tokenizer.decode(_vector(tokens))


def _last_of(tokenizer: Tokenizer, tokens: list[int]) -> list[int]:
    """The last tokens of a text, from the beginning of a character on where that can be told."""
    for more in range(_CHARACTER_TOKENS_MAX):
        last = tokens[-_DECODED_BEFORE - more :]
        if not tokenizer.decode(_vector(last)).startswith(_CUT_CHARACTER):
            return last
    return tokens[-_DECODED_BEFORE:]


def _vector(tokens: list[int]) -> TokenVector:
    return np.array(tokens, np.uint32)


def _until_stop(pieces: Iterator[str], stops: tuple[str, ...]) -> Iterator[tuple[str, bool]]:
    """The pieces up to the first of some texts, and whether it came there. The end of a piece that
    may be the beginning of such a text waits for the next piece."""
    held = ""
    for piece in pieces:
        held += piece
        if found := [held.index(stop) for stop in stops if stop in held]:
            yield held[: min(found)], True
            return
        waiting = max((_overlap(held, stop) for stop in stops), default=0)
        said, held = held[: len(held) - waiting], held[len(held) - waiting :]
        yield said, False
    yield held, False


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` with which `stop` begins."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


ERRORS = (GenerationError, DeviceError, MalformedError, FolderError, TemplateError)
"""What can go wrong with a model or a request; all else is a bug."""


def refusal_of(error: Exception) -> Refused:
    """The answer in the place of a text. A bug is raised."""
    if isinstance(error, ERRORS):
        return Refused(str(error), isinstance(error, RequestError | TemplateError))
    if not is_out_of_memory(error):
        raise error
    return Refused("this machine has too little memory for the model: free some, and try again")
