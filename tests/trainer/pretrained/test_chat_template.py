"""Chat templates: the text that `transformers` makes, and programs that mean no good."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gossamer.trainer.generation.chat_template import ChatTemplate, TemplateError
from gossamer.trainer.generation.continuation import refusal_of
from gossamer.trainer.ipc.generation import ChatMessage
from gossamer.trainer.pretrained.model_files import ModelFiles, read_model_files
from tests.support.model_folders import config_of_family, make_folder

CHAT = (
    ChatMessage("system", "Be short."),
    ChatMessage("user", 'What is "this"? \u00fc'),
    ChatMessage("assistant", "That."),
    ChatMessage("user", "hi"),
)

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n' + message.content | trim }}\n"
        "    {{- eos_token }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "loop": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{% if loop.last %}{{ m | tojson }}{% break %}{% endif %}{{ loop.index }}"
        "{{ m.get('tool_calls', 'none') }}{% endfor %}"
    ),
    "tools": (
        "{% if tools is not none %}{{ tools | length }} tools{% endif %}"
        "{% if documents is not none %}{{ documents | length }} texts{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    ),
    "json": (
        "{% for m in messages %}{{ m | tojson(sort_keys=true, separators=(',', ':')) }}"
        "{{ m.content | tojson(ensure_ascii=true) }}{{ m | tojson(indent=2) }}{% endfor %}"
    ),
    "names": (
        "{% if unk_token is defined %}{{ unk_token }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{{ sep_token }}{% endfor %}"
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_folder(tmp_path / "model", config_of_family("llama"))
    return tmp_path / "model"


def files_of(folder: Path, template: Any) -> ModelFiles:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": template}))
    return read_model_files(folder)


def template_of(folder: Path, text: str) -> ChatTemplate:
    return ChatTemplate(text, files_of(folder, text))


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_the_text_is_that_of_transformers(folder: Path, text: str) -> None:
    transformers = pytest.importorskip("transformers")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"sep_token": "<|im_end|>"}))
    ours = template_of(folder, text)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": one.role, "content": one.content} for one in CHAT]
    expected = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ours.render(CHAT) == expected
    numbers = theirs(expected, add_special_tokens=False).input_ids
    assert ours.encode(CHAT) == numbers


def test_the_template_is_found_where_models_have_it(folder: Path) -> None:
    assert files_of(folder, "plain").chat_template == "plain"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert files_of(folder, named).chat_template == "yes"
    assert files_of(folder, [{"name": []}, 7, *named]).chat_template == "yes"
    (folder / "chat_template.json").write_text('{"chat_template": "json"}')
    assert read_model_files(folder).chat_template == "json"
    (folder / "chat_template.jinja").write_text("jinja")
    assert read_model_files(folder).chat_template == "jinja"


def test_a_model_without_a_template_has_none(folder: Path) -> None:
    assert files_of(folder, None).chat_template is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[99].content }}", "failed"),
        ("{% for %}", "failed"),
        ("{{ 1 / 0 }}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "failed"),
        ("{{ messages.append(1) }}", "failed"),
        ("{% for n in range(10 ** 9) %}{% endfor %}", "failed"),
        ("{% for n in range(9000) %}{{ 'x' * 100 }}{% endfor %}", "too long"),
        ("{{ 'x' * 4294967296 }}", "too much memory"),
        ("", "empty"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "failed"),
        ("{{ cycler().next() }}", "failed"),
        ("{{ '\\ud800' }}", "failed"),
        ("{{ raise_exception('\\ud800') }}", "does not take"),
        ("{{ raise_exception('x' * 100000) }}", "does not take"),
        ("{% if x %}" * 5000 + "{% endif %}" * 5000, "failed"),
    ],
)
def test_a_template_that_fails_says_so(folder: Path, text: str, said: str) -> None:
    with pytest.raises(TemplateError, match=said) as raised:
        template_of(folder, text).encode(CHAT)
    # What the process says to the daemon is JSON, and not too long a line.
    assert len(msgspec.json.encode(refusal_of(raised.value))) < 1000
