"""Conversations as text to train on, of which only the assistant's tokens are targets.

- A line of JSON holds `{"messages": [{"role": ..., "content": ...}, ...]}`. The chat template of
  the model, a Jinja program, writes it as one text, as `transformers` does.
- Where the assistant speaks in that text is found by a second rendering, in which a mark stands
  for each message of the assistant. The text around the marks has to be that of the first one.
- Targets are the tokens that have a part of an assistant's message, and what its turn ends with:
  the token right behind it, and where that is a space before a special token, that one too. So the
  model learns to begin and to stop. All others get `PROMPT_BIT`. A token may begin before the
  message: where a template writes a space before it, that space is a part of its first word.
- The template is another person's program. It runs in Jinja's sandbox, which gives it neither files
  nor attributes of objects, and in the process that cuts the corpus, which can be killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import msgspec
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as HuggingFaceTokenizer

from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.trainer.text.sources.chat_environment import chat_environment, reason_of, rendered
from gossamer.trainer.text.sources.corpus_errors import BadDocumentError, CorpusError
from gossamer.trainer.text.sources.documents import is_blank, json_record

MESSAGES_FIELD = "messages"
ASSISTANT = "assistant"

Message = Mapping[str, Any]


class _Document(msgspec.Struct, frozen=True, array_like=True):
    """A conversation as the spool keeps it."""

    text: str
    spoken: tuple[tuple[int, int], ...]
    """Where the assistant speaks, in characters: (start, stop)."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Document)


class Chat:
    """Writes conversations as a model's authors have it."""

    def __init__(
        self,
        template: str,
        tokens: Mapping[str, str],
        tokenizer: HuggingFaceTokenizer,
        end_token: int,
    ) -> None:
        """
        Args:
            template: the Jinja program.
            tokens: the texts of special tokens by their names, such as `bos_token`.
            end_token: the token that ends a text.

        Raises:
            CorpusError: the template is no such program.
        """
        try:
            self._template = chat_environment().from_string(template)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CorpusError(
                f"the model's chat template cannot be read: {reason_of(error)}"
            ) from error
        self._tokens = dict(tokens)
        self._tokenizer = tokenizer
        self._end_token = end_token
        added = tokenizer.get_added_tokens_decoder().items()
        self._specials = {end_token, *(number for number, token in added if token.special)}

    def document(self, line: bytes) -> bytes:
        """Returns the conversation of a JSON line, written and marked; of a blank line nothing.

        Raises:
            BadDocumentError: it holds none that can be used.
        """
        if is_blank(line):
            return b""
        messages = _messages_of(json_record(line))
        text, spoken = self.write(messages)
        if "\0" in text:
            raise BadDocumentError("has byte 0 (\\u0000) in its text; remove it from there")
        return _encoder.encode(_Document(text, tuple(spoken)))

    def write(self, messages: Sequence[Message]) -> tuple[str, list[tuple[int, int]]]:
        """Returns a conversation's text, and where in it the assistant speaks, in characters.

        Raises:
            BadDocumentError: the template does not take it, or changes what the assistant says.
        """
        text = self._render(messages)
        said = [message["content"] for message in messages if message["role"] == ASSISTANT]
        marks = [f"\ue000{number}\ue001" for number in range(len(said))]
        marked, left = [], list(marks)
        for message in messages:
            if message["role"] == ASSISTANT:
                message = {**message, "content": left.pop(0)}
            marked.append(message)
        spoken: list[tuple[int, int]] = []
        around = self._around(self._render(marked), marks)
        end = len(around[0])
        if not text.startswith(around[0]):
            raise _changed_by_template(1)
        for number, content in enumerate(said):
            start, behind = end, around[number + 1]
            written = next(
                (
                    form
                    for form in (content, content.strip(), content.rstrip(), content.lstrip())
                    if text.startswith(form + behind, start)
                ),
                None,
            )
            if written is None:
                raise _changed_by_template(number + 1)
            spoken.append((start, start + len(written)))
            end = start + len(written) + len(behind)
        if end != len(text):
            raise _changed_by_template(len(said))
        return text, spoken

    def encode(self, documents: Sequence[bytes]) -> list[npt.NDArray[np.uint32]]:
        """Returns the tokens of documents of `document`, each with its end: (num_tokens,) each."""
        decoded = [_decoder.decode(document) for document in documents]
        texts = [document.text for document in decoded]
        # Templates write special tokens as text, those in front of a text among them.
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [
            self._marked(encoding.ids, encoding.offsets, document)
            for encoding, document in zip(encodings, decoded, strict=True)
        ]

    def _marked(
        self, ids: Sequence[int], places: Sequence[tuple[int, int]], document: _Document
    ) -> npt.NDArray[np.uint32]:
        """Returns the tokens of a text and its end, marked. `places`: of each in the text, in
        characters: (start, stop)."""
        has_end = bool(ids) and ids[-1] == self._end_token
        if not has_end:
            length = len(document.text)
            ids, places = [*ids, self._end_token], [*places, (length, length)]
        tokens = np.array(ids, np.uint32)
        at, ends = np.array(places, np.int64).T
        ends = np.maximum(ends, at + 1)  # some tokens have no characters of their own
        is_target = np.zeros(len(tokens), np.bool_)
        for start, stop in document.spoken:
            is_target |= (start < stop) & (start < ends) & (at < stop)
            behind = int(np.searchsorted(at, stop))
            is_target[behind : self._turn_end(ids, places, behind, stop, document.text)] = True
        tokens[~is_target] |= np.uint32(PROMPT_BIT)
        return tokens

    def _turn_end(
        self,
        ids: Sequence[int],
        places: Sequence[tuple[int, int]],
        behind: int,
        stop: int,
        text: str,
    ) -> int:
        """Returns the token before which a turn ends.

        Args:
            behind: the first token that begins behind what is said.
            stop: where in the text that ends.
        """
        for number in range(behind, len(ids)):
            if ids[number] in self._specials:
                return number + 1
            if text[stop : places[number][1]].strip():
                break
        is_right_behind = behind < len(ids) and places[behind][0] == stop
        return behind + 1 if is_right_behind else behind

    def _around(self, text: str, marks: Sequence[str]) -> list[str]:
        """Returns the pieces of a text before, between and behind the marks."""
        pieces = []
        for number, mark in enumerate(marks):
            before, found, text = text.partition(mark)
            if not found or mark in text:
                raise BadDocumentError(
                    "cannot be used: the model's chat template does not write message "
                    f"{number + 1} of the assistant once and in its place; leave it out"
                )
            pieces.append(before)
        return [*pieces, text]

    def _render(self, messages: Sequence[Message]) -> str:
        try:
            return rendered(self._template, messages, self._tokens, is_question=False)
        except Exception as error:  # a program of somebody else may raise anything
            raise BadDocumentError(
                "cannot be used: the model's chat template refuses it "
                f"({reason_of(error)}); leave it out, or write it as the model's authors describe"
            ) from error


def _messages_of(record: Mapping[str, msgspec.Raw]) -> list[dict[str, Any]]:
    """Returns the messages of a JSON object. Raises BadDocumentError: it has none of use."""
    if MESSAGES_FIELD not in record:
        names = ", ".join(repr(name) for name in sorted(record)[:8]) or "none"
        raise BadDocumentError(
            f'has no field "{MESSAGES_FIELD}" (its fields: {names}); a conversation is '
            '{"messages": [{"role": "user", "content": "..."}, ...]}'
        )
    try:
        messages = msgspec.json.decode(record[MESSAGES_FIELD], type=list[dict[str, Any]])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadDocumentError(f'has a field "{MESSAGES_FIELD}" that is no list: {error}') from None
    for number, message in enumerate(messages):
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise BadDocumentError(
                    f'has no text as "{key}" of message {number + 1}; pictures and calls of tools '
                    "cannot be trained on: leave it out"
                )
    if not any(message["role"] == ASSISTANT for message in messages):
        raise BadDocumentError(
            'has no message of the role "assistant": nothing in it is to be learnt; leave it out'
        )
    return messages


def _changed_by_template(number: int) -> BadDocumentError:
    return BadDocumentError(
        f"cannot be used: the model's chat template changes message {number} of the assistant, so "
        "it is not known which tokens are its own; leave it out, or shorten it to what the "
        "template keeps"
    )
