"""Continuing a text with a model, token by token: the work of the process `generate`."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import torch
from torch import Tensor

from gossamer.protocol.errors import MalformedError
from gossamer.trainer.device import Device, DeviceError, choose_device, is_out_of_memory
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.generation import GenerateText, Refused, Text
from gossamer.trainer.model import Decoder, KeyValues
from gossamer.trainer.pretrained.config import model_of_config
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.model_files import unpack_model_files
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer
from gossamer.trainer.text.tokens import Tokenizer, load_tokenizer

CONTEXT_MAX = 32_768
"""Tokens that are kept at most. With published shapes their keys and values take some gigabytes."""

_CUT_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class GenerationError(ValueError):
    """No text can be generated. The message says why."""


def generate(task: GenerateText) -> Iterator[str]:
    """Pieces of the continuation of the task's prompt, as they come.

    Raises:
        GenerationError, DeviceError: see there.
        MalformedError, FolderError: the run's tokenizer is damaged.
    """
    tokenizer, stops, context = _load_tokenizer(task)
    device = choose_device(task.device)
    # A copy, because a device has memory of its own.
    decoder = Decoder(msgspec.structs.replace(task.model, context=context), device.torch_device)
    shared = memory.open_vector(task.base_fd, task.model.num_parameters)
    decoder.flat.copy_(torch.from_numpy(shared))
    (prompt,) = tokenizer.encode([task.prompt.encode()])
    tokens = prompt.tolist() or [tokenizer.end_token]  # after one text another begins
    if max(tokens) >= task.model.vocabulary:
        raise GenerationError("the run's tokenizer has tokens that its model does not have")
    yield from _texts(tokenizer, tokens, _sampled(task, decoder, device, tokens, tokenizer, stops))


def _load_tokenizer(task: GenerateText) -> tuple[Tokenizer, frozenset[int], int]:
    """The tokenizer, the tokens at which a text ends, and the longest context of the model."""
    if task.tokenizer != "files":
        tokenizer = load_tokenizer(task.tokenizer, task.tokenizer_block)
        return tokenizer, frozenset([tokenizer.end_token]), task.model.context
    files = unpack_model_files(task.tokenizer_block)
    imported = ImportedTokenizer(files)
    longest = max(task.model.context, model_of_config(files.config).context)
    return imported, imported.stop_tokens, min(longest, CONTEXT_MAX)


@torch.no_grad()
def _sampled(
    task: GenerateText,
    decoder: Decoder,
    device: Device,
    tokens: list[int],
    tokenizer: Tokenizer,
    stops: frozenset[int],
) -> Iterator[int]:
    """Tokens behind `tokens`, until one ends the text or there are as many as were asked for."""
    random = torch.Generator().manual_seed(task.seed)
    context = decoder.rotary.cosines.shape[0]
    tokens = tokens[-context:]
    past: list[KeyValues] | None = None
    for _ in range(task.tokens):
        if past is None or past[0].length == context:
            # Full: the newer half begins anew, because positions count from the first token.
            tokens = tokens[-max(1, context // 2) :] if past is not None else tokens
            past = [KeyValues(context) for _ in decoder.layers]
            given = tokens
        else:
            given = tokens[-1:]
        inputs = torch.tensor([given], device=device.torch_device)
        with device.autocast():
            logits = decoder.next_logits(inputs, past)[0].float().cpu()
        number = _choose(logits[: tokenizer.vocabulary], task.temperature, random)
        if number in stops:
            return
        tokens = [*tokens, number]
        yield number


def _choose(logits: Tensor, temperature: float, random: torch.Generator) -> int:
    """A token by its probability at a temperature, (V,) -> a number below V."""
    if not bool(torch.isfinite(logits).all()):
        raise GenerationError("the model computes values that are not finite: it has diverged")
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.double() / temperature, 0)
    return int(torch.multinomial(probabilities, 1, generator=random))


def _texts(tokenizer: Tokenizer, before: list[int], numbers: Iterator[int]) -> Iterator[str]:
    """The text of tokens in pieces. A piece that ends in half a character waits for the rest."""
    tokens = list(before)
    said = tokenizer.decode(np.array(tokens, np.uint32))
    for number in numbers:
        tokens.append(number)
        text = tokenizer.decode(np.array(tokens, np.uint32))
        if not text.endswith(_CUT_CHARACTER):
            yield text[len(said) :]
            said = text
    text = tokenizer.decode(np.array(tokens, np.uint32))
    if text != said:
        yield text[len(said) :]


def answers(task: GenerateText) -> Iterator[Text | Refused]:
    """The messages that answer a task, as they come. A bug is raised."""
    try:
        for piece in generate(task):
            yield Text(piece)
    except (GenerationError, DeviceError, MalformedError, FolderError) as error:
        yield Refused(str(error))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        yield Refused("this machine has too little memory for the model: free some, and try again")
