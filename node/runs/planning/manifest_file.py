"""The manifest file: a founder's choices as commented TOML.

`gossamer init` writes a file (`write_manifest_file`) with every value of a preset. `gossamer start
--manifest` reads it (`read_manifest_file`). A file may instead name a `preset` and only the keys
that differ. All mistakes of a file are reported together, one sentence each, with the name of the
key and what is allowed.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import UNSET

from gossamer.node.runs.planning.draft import (
    VOCABULARY_MAX,
    Draft,
    ScheduleDraft,
    SourceDraft,
    default_chunk_elements_of,
    default_step_chunks_of,
    draft_of_preset,
    preset_names,
    problems_of_draft,
    schedule_of,
    unknown_preset,
)
from gossamer.node.runs.planning.manifest_keys import (
    EXPLANATIONS,
    HEADER,
    HINTS,
    SECTION_TITLES,
    SECTIONS,
)
from gossamer.protocol import limits
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.manifest import TokenSchedule
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from gossamer.trainer.presets.modes import adapted, default_optimizer
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS
from gossamer.trainer.text.tokenizers.tokens import BPE_VOCABULARY_MIN, BYTES_VOCABULARY

# A file of `init` has about 5 KB, and a list of a thousand allowed peers 60 KB more.
MANIFEST_FILE_BYTES_MAX = limits.MIB

# Keys that may be left out although no preset is named.
_OPTIONAL = {"tokenizer.vocabulary", "outer.chunk_elements"} | {
    f"{section}.{field.name}"
    for section, struct in SECTIONS.items()
    for field in msgspec.structs.fields(struct)
    if not field.required
}

_EXAMPLES = {
    # A key `sources` without a value would forbid [[corpus.sources]] below it.
    "sources": '# sources = [{path = "code", weight = 0.7}, {path = "texts", weight = 0.3}]',
    "lora": "# lora = {rank = 16, alpha = 32.0, "
    'targets = ["q_proj", "k_proj", "v_proj", "o_proj"]}',
    "accusers": "# accusers = 2",
    "keepers": '# keepers = ["12D3KooW...", "12D3KooW...", "12D3KooW..."]',
    "probation": "# probation = 16",
}
"""Lines of keys that a draft need not have a value of."""

TomlValue: TypeAlias = (
    "msgspec.Struct | str | int | float | date | time | Sequence[TomlValue] "
    "| Mapping[str, TomlValue]"
)
"""A value as `tomllib` reads it, or as a draft has it."""

Section = TypeVar("Section", bound=msgspec.Struct)


def read_manifest_file(path: Path, *, from_weights: bool = False) -> Draft:
    """Returns the draft in a file. Its relative corpus paths are relative to the file's folder.

    Args:
        from_weights: whether the run begins with the weights of a folder (`--init-from`).

    Raises:
        ManifestError: the file cannot be read, is not TOML, or has keys or values not allowed.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MANIFEST_FILE_BYTES_MAX + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        advice = "name a file" if path.exists() else f"write one with: gossamer init {path}"
        raise ManifestError([f"manifest file {path}: {reason}; {advice}"]) from error
    if len(data) > MANIFEST_FILE_BYTES_MAX:
        raise ManifestError(
            [f"manifest file {path} has over {MANIFEST_FILE_BYTES_MAX} bytes; name the right one"]
        )
    try:
        text = data.decode("utf-8-sig")  # some editors begin with a byte order mark
    except UnicodeDecodeError as error:
        raise ManifestError(
            [f"manifest file {path} is not UTF-8 text: save it as UTF-8"]
        ) from error
    name = f"manifest file {path}"
    return parse_manifest_file(text, path.parent, from_weights=from_weights, name=name)


def parse_manifest_file(
    text: str, folder: Path, *, from_weights: bool = False, name: str = "the manifest file"
) -> Draft:
    """Returns the draft in a text, as `read_manifest_file` does for a file in `folder`. `name`: of
    the file, for errors."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ManifestError([f"{name} is not valid TOML: {error}"]) from error
    problems: list[str] = []
    given = _Given(document, problems, from_weights=from_weights)
    draft = given.draft(problems)
    problems += [p for p in problems_of_draft(draft) if not given.is_doubtful(p)]
    if problems:
        raise ManifestError(problems)
    replace = msgspec.structs.replace
    paths = tuple(_placed(folder, path) for path in draft.corpus.paths)
    sources = tuple(
        replace(source, path=_placed(folder, source.path)) for source in draft.corpus.sources
    )
    heldout = tuple(_placed(folder, path) for path in draft.corpus.heldout)
    corpus = replace(draft.corpus, paths=paths, sources=sources, heldout=heldout)
    return replace(draft, corpus=corpus)


def _placed(folder: Path, path: str) -> str:
    return str(folder / Path(path).expanduser())


def render(draft: Draft, *, preset: str | None = None) -> str:
    """Returns the draft as commented TOML, which `parse_manifest_file` reads back."""
    lora = bool(draft.model.lora)
    defaults = {
        "chunk_elements": default_chunk_elements(draft.model.num_parameters),
        "step_chunks": default_step_chunks_of(draft.model, draft.outer, draft),
        "optimizer": default_optimizer(draft.sync, trust=draft.trust, lora=lora),
    }
    lines = [f"# {line}".rstrip() for line in HEADER.splitlines()]
    if preset is not None:
        chosen = PRESETS[preset]
        lines.append(f'# The values below are those of the preset "{preset}": {chosen.summary}.')
        lines.append(f"# They {chosen.origin}.")
    lines.append("")
    for key in HINTS[""]:
        lines += _entry("", key, getattr(draft, key))
    for section in SECTIONS:
        lines += ["", f"# {SECTION_TITLES[section]}", f"[{section}]"]
        values = schedule_of(draft.inner) if section == "schedule" else getattr(draft, section)
        for key in HINTS[section]:
            value = getattr(values, key)
            shown = draft.outer.chunks_of_step if key == "step_chunks" else value
            explanation, line = _entry(section, key, shown)
            if key in _EXAMPLES and not value:
                line = _EXAMPLES[key]
            elif key in defaults and value == defaults[key]:
                line = f"# {line}"  # so that it follows an edited file, and --init-from
            lines += [explanation, line]
    return "\n".join(lines) + "\n"


def write_manifest_file(path: Path, draft: Draft, *, preset: str | None = None) -> None:
    """Writes a new file, and leaves an existing one as it is.

    Raises:
        ManifestError: the file exists already or cannot be written.
    """
    text = render(draft, preset=preset)
    try:
        file = path.open("x", encoding="utf-8")
        try:
            with file:
                file.write(text)
        except OSError:
            path.unlink()  # what a full disk took of it would be in the way of the next attempt
            raise
    except FileExistsError as error:
        raise ManifestError([f"{path} exists already; name another file or remove it"]) from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ManifestError([f"cannot write {path}: {reason}; name another file"]) from error


def _entry(section: str, key: str, value: TomlValue) -> list[str]:
    return [f"# {EXPLANATIONS[section][key]}", f"{key} = {_toml(value)}"]


def _toml(value: TomlValue) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # TOML has all escapes of JSON, and requires one more character to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, msgspec.Struct):
        fields = [each for each in msgspec.structs.asdict(value).items() if each[1] is not UNSET]
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in fields) + "}"
    if isinstance(value, tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return repr(value)


class _Given:
    """The keys of a file, and the values of the known keys that have the right type."""

    def __init__(
        self, document: Mapping[str, TomlValue], problems: list[str], *, from_weights: bool
    ) -> None:
        self._from_weights = from_weights
        self._values: dict[str, dict[str, Any]] = {section: {} for section in HINTS}
        self._named: set[str] = set()
        self._replaced: set[str] = set()
        self._preset: str | None = None
        for key, value in document.items():
            if key in SECTIONS and isinstance(value, dict):
                for inner_key, inner_value in value.items():
                    self._take(key, inner_key, inner_value, problems)
            elif key in SECTIONS:
                problems.append(f"{key} is {_shown(value)}; allowed: a table, begun with [{key}]")
                inner_keys = {f"{key}.{inner_key}" for inner_key in HINTS[key]}
                self._named |= inner_keys
                self._replaced |= inner_keys
            elif key == "preset":
                self._preset = str(value)
                if value not in PRESETS:
                    problems.append(unknown_preset(self._preset))
            else:
                self._take("", key, value, problems)

    def _take(self, section: str, key: str, value: TomlValue, problems: list[str]) -> None:
        full = f"{section}.{key}" if section else key
        if key not in HINTS[section]:
            problems.append(_unknown_key(section, full))
            return
        self._named.add(full)
        hint = HINTS[section][key]
        try:
            # 3 is accepted for 3.0, but a string is not accepted for a number.
            self._values[section][key] = msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            where = f" ({error})" if full in ("corpus.sources", "model.lora") else ""
            problems.append(f"{full} is {_shown(value)}{where}; allowed: {_allowed(hint)}")
            if section:
                self._replaced.add(full)

    def draft(self, problems: list[str]) -> Draft:
        """Returns a whole draft. A missing or wrong value is added to `problems`, and a preset's
        value replaces it, so that the rest can be checked."""
        self._require_all(problems)
        preset = self._preset if self._preset in PRESETS else DEFAULT_PRESET
        base = draft_of_preset(preset)
        replace = msgspec.structs.replace
        sync = self._values[""].get("sync", base.sync)
        optimizer = self._values["inner"].get("optimizer") or default_optimizer(
            sync,
            trust=self._values[""].get("trust", base.trust),
            lora=bool(self._values["model"].get("lora")),
            from_weights=self._from_weights,
        )
        chosen = adapted(PRESETS[preset], sync, optimizer)
        schedule = self._schedule(schedule_of(chosen.inner), problems)
        base = replace(base, inner=chosen.inner, outer=chosen.outer)
        tokenizer = self._section("tokenizer", base.tokenizer)
        if tokenizer.kind != base.tokenizer.kind and "tokenizer.vocabulary" not in self._named:
            if tokenizer.kind == "bpe":
                problems.append(
                    'tokenizer.vocabulary is missing; allowed for "bpe": '
                    f"{BPE_VOCABULARY_MIN} to {VOCABULARY_MAX}"
                )
            vocabulary = BYTES_VOCABULARY if tokenizer.kind == "bytes" else BPE_VOCABULARY_MIN
            tokenizer = replace(tokenizer, vocabulary=vocabulary)
        model = replace(self._section("model", base.model), vocabulary=tokenizer.vocabulary)
        outer = self._section("outer", base.outer)
        run = replace(base, sync=sync, trust=self._values[""].get("trust", base.trust))
        if "outer.chunk_elements" not in self._named and _is_sized(model):
            chunk_elements = default_chunk_elements_of(model, outer, run)
            outer = replace(outer, chunk_elements=chunk_elements)
        if "outer.step_chunks" not in self._named:
            outer = replace(outer, step_chunks=default_step_chunks_of(model, outer, run))
        return replace(
            base,
            **self._values[""],
            corpus=self._section("corpus", base.corpus),
            tokenizer=tokenizer,
            model=model,
            inner=replace(self._section("inner", base.inner), schedule=schedule),
            outer=outer,
            rounds=self._section("rounds", base.rounds),
        )

    def _schedule(
        self, preset: ScheduleDraft, problems: list[str]
    ) -> TokenSchedule | msgspec.UnsetType:
        """Returns what the section `schedule` says; a file that chooses `cosine` need not say that
        the tokens of its preset do not count."""
        is_cosine = self._values["schedule"].get("kind") == "cosine"
        given = self._section("schedule", ScheduleDraft() if is_cosine else preset)
        if given.kind == "wsd":
            return TokenSchedule(
                warmup_tokens=given.warmup_tokens,
                total_tokens=given.total_tokens,
                cooldown_tokens=given.cooldown_tokens,
            )
        if given != ScheduleDraft():
            problems.append(
                'schedule.kind is "cosine"; warmup_tokens, total_tokens and cooldown_tokens are '
                "then 0"
            )
        return msgspec.UNSET

    def is_doubtful(self, problem: str) -> bool:
        """Returns whether a problem is about a key whose wrong value was replaced."""
        return any(key in problem for key in self._replaced)

    def _section(self, name: str, base: Section) -> Section:
        return msgspec.structs.replace(base, **self._values[name])

    def _require_all(self, problems: list[str]) -> None:
        keys = [f"{section}.{key}" for section in SECTIONS for key in HINTS[section]]
        missing = [key for key in keys if key not in self._named and key not in _OPTIONAL]
        if self._preset not in PRESETS:
            self._replaced.update(missing)
        if self._preset is None and missing:
            problems.append(
                f"missing: {', '.join(missing)}; give each, or take them from a preset "
                f"(preset = one of {preset_names()})"
            )


def _unknown_key(section: str, full: str) -> str:
    if full == "model.vocabulary":
        return "model.vocabulary is not a key; set tokenizer.vocabulary instead"
    known = [f"{name}.{key}" for name in SECTIONS for key in HINTS[name]]
    if not section:
        known += ["preset", *HINTS[""], *SECTIONS]
    if near := difflib.get_close_matches(full, known, n=1):
        return f"{full} is not a key; did you mean {near[0]}?"
    tables = [f"[{name}]" for name in SECTIONS]
    allowed = [*HINTS[section]] if section else ["preset", *HINTS[""], *tables]
    where = f"in [{section}]" if section else "at the top"
    return f"{full} is not a key; allowed {where}: {', '.join(allowed)}"


def _is_sized(model: ModelConfig) -> bool:
    return min(model.num_heads, model.num_layers, model.width, model.hidden_width) > 0 and (
        model.num_parameters > 0
    )


def _allowed(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(json.dumps(choice) for choice in get_args(hint))
    if hint is LoraConfig:
        return "a table [model.lora] with rank and alpha (numbers) and targets (a list of matrices)"
    if get_origin(hint) is tuple:
        if get_args(hint)[0] is SourceDraft:
            return 'tables [[corpus.sources]], each with path = "..." and weight = (a number)'
        return 'a list of strings, such as ["one", "two"]'
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text in quotes"}[
        hint
    ]


def _shown(value: TomlValue) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return json.dumps(value if len(value) <= 40 else value[:40] + "...", ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
