"""The chat template of an imported model: messages to tokens, as `transformers` does it.

A template is a program in Jinja that the model's authors wrote. It runs in Jinja's sandbox, in a
process that has given up files and network (`trainer.generation.generate`), in a bound of memory.
The caller bounds its time.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gossamer.protocol.limits import MIB
from gossamer.trainer.ipc.generation import PROMPT_BYTES_MAX, ChatMessage
from gossamer.trainer.pretrained.model_files import ModelFiles
from gossamer.trainer.text.sources.chat_environment import (
    RefusedByTemplate,
    chat_environment,
    reason_of,
    rendered,
)
from gossamer.trainer.text.tokenizers.words import EncoderFile

MEMORY_BYTES_MAX = 256 * MIB
"""What a template may allocate: far more than the text that it may make."""


class TemplateError(ValueError):
    """A chat that the template does not make a text of. The message says why."""


class ChatTemplate:
    """One template with the tokenizer to which it belongs."""

    def __init__(self, text: str, files: ModelFiles) -> None:
        self._text = text
        self._tokenizer = EncoderFile(files.tokenizer_json, specials_are_text=False).open()
        self._tokens = files.special_tokens

    def render(self, messages: Sequence[ChatMessage]) -> str:
        """The text of a chat, up to where the model's answer begins.

        Raises:
            TemplateError: the template is damaged, does not take these messages, or makes too long
                a text.
        """
        environment = chat_environment()
        given = [{"role": one.role, "content": one.content} for one in messages]
        try:
            with _bounded_memory():  # the compiler computes with constants already
                template = environment.from_string(self._text)
                text = rendered(template, given, self._tokens, is_question=True)
        except RefusedByTemplate as error:
            raise TemplateError(
                f"the model's chat template does not take these messages: {reason_of(error)}"
            ) from error
        except MemoryError as error:
            raise TemplateError("the model's chat template took too much memory") from error
        # A template is a program of somebody else: whatever it raises is about these messages.
        except Exception as error:
            raise TemplateError(f"the model's chat template failed: {reason_of(error)}") from error
        if len(text.encode()) > 2 * PROMPT_BYTES_MAX:
            raise TemplateError("the model's chat template made too long a text of the messages")
        return text

    def encode(self, messages: Sequence[ChatMessage]) -> list[int]:
        """The tokens of a chat. The template itself writes what begins a text. TemplateError as
        `render`."""
        tokens: list[int] = self._tokenizer.encode(
            self.render(messages), add_special_tokens=False
        ).ids
        if not tokens:
            raise TemplateError("the model's chat template made an empty text of the messages")
        return tokens


@contextmanager
def _bounded_memory() -> Iterator[None]:
    """Bounds what the process may allocate meanwhile, where the system tells its size (Linux)."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except (OSError, ValueError):
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + MEMORY_BYTES_MAX
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
