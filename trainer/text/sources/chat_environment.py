"""The language of chat templates: Jinja in its sandbox, as `transformers` gives it to them.

A template is a program that the authors of a model wrote. The sandbox gives it neither files nor
attributes of objects. Callers bound its time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

REASON_CHARACTERS_MAX = 200
"""Of what a template says when it fails: a sentence. It is another's text."""


class RefusedByTemplate(jinja2.TemplateError):
    """The template does not take these messages. Its text is the template's."""


def chat_environment() -> jinja2.Environment:
    """Returns an environment that compiles chat templates."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


def rendered(
    template: jinja2.Template,
    messages: Sequence[Mapping[str, Any]],
    tokens: Mapping[str, str],
    *,
    is_question: bool,
) -> str:
    """Returns the text of a chat.

    Args:
        tokens: the texts of special tokens by their names, such as `bos_token`.
        is_question: whether an answer is to follow, which the text then begins.

    Raises:
        Exception: any that the template raises; or UnicodeEncodeError: half a surrogate in it.
    """
    # Templates ask whether `tools` and `documents` are none, not whether they exist.
    text = template.render(
        messages=messages, add_generation_prompt=is_question, tools=None, documents=None, **tokens
    )
    text.encode()
    return text


def reason_of(error: Exception) -> str:
    """Returns what a template says of its failure: short, and without what cannot be printed, such
    as half a surrogate."""
    text = str(error)[:REASON_CHARACTERS_MAX]
    return "".join(each if each.isprintable() else " " for each in text)


def _refuse(message: object) -> NoReturn:
    raise RefusedByTemplate(str(message))


def _now(form: str) -> str:
    """Some templates tell the model the date."""
    return datetime.now().strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML. The arguments are those that `transformers` takes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` of some templates, whose body is written like everything else."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares it as of the instance

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
