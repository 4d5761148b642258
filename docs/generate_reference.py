"""Writes the reference pages from the code: commands, settings, manifest keys, metrics, HTTP.

    python docs/generate_reference.py FOLDER     # as files, to read them without the site

`pages` is what the site's build calls (`hooks.py`). Nothing on these pages is written by hand but
the sentence at the top of each. Without an entry in the code there is none here.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import GenericAlias, UnionType
from typing import Literal, TypeAlias, get_args, get_origin

import msgspec
from cyclopts import App
from prometheus_client.samples import Sample
from rich.console import Console
from starlette.routing import Route

from gossamer.node import command_table
from gossamer.node.app.http import http
from gossamer.node.base.settings import settings as config
from gossamer.node.commands import node_options, options
from gossamer.node.runs.planning import draft, manifest_keys
from gossamer.node.telemetry import status
from gossamer.node.telemetry.gpus import Gpus
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.wire.statements import Capacity
from gossamer.trainer.presets.table import DEFAULT_PRESET, PRESETS

Hint: TypeAlias = type | GenericAlias | UnionType
Value: TypeAlias = str | bool | int | float | Path | tuple[str, ...]

HELP_COLUMNS = 88
"""Width of the help texts: what a page of the site shows without a scroll bar."""


def pages() -> dict[str, str]:
    """Path in the site to the Markdown of each generated page."""
    return {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/manifest.md": manifest_page(),
        "reference/metrics.md": metrics_page(),
        "reference/http.md": http_page(),
    }


def command_names() -> list[str]:
    """The names of all commands, sorted, without `--help` and its like: `config show` is one."""
    groups = {group: commands for group, _, commands in command_table.GROUPS}
    names = []
    for name in command_table.app:
        if not name.startswith("-"):
            names.append(name)
        names += [f"{name} {command}" for command, _, _ in groups.get(name, ())]
    return sorted(names)


def commands_page() -> str:
    """Each command with the text of its own `--help`."""
    parts = [
        "# Commands",
        "Each text below is what the command prints with `--help`. The exit status is 0 for "
        "success, 1 for what did not work, and 2 for what would fail again until somebody "
        "changes something: a setting, a link, a damaged file, or the list of an `allow` run.",
        f"## gossamer\n\n{_fenced(_help())}",
    ]
    parts += [f"## gossamer {name}\n\n{_fenced(_help(*name.split()))}" for name in command_names()]
    return _joined(parts)


def _help(*command: str) -> str:
    text = io.StringIO()
    console = Console(file=text, width=HELP_COLUMNS, color_system=None, legacy_windows=False)
    app: App = command_table.app
    command_table.tell_all(command)
    app.help_print(list(command), console=console)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip()


def settings_page() -> str:
    """The fields of `Settings`: key of the file, environment variable, flag, default."""
    texts = {
        **_field_texts(options.StateOptions),
        **_field_texts(node_options.NodeOptions),
        **_field_texts(config.Settings),
    }
    shown = _help("start")
    rows = []
    for field in msgspec.structs.fields(config.Settings):
        flag = "--" + field.name.replace("_", "-")
        rows.append(
            (
                f"`{field.name}`",
                f"`{config.ENVIRONMENT_PREFIX}{field.name.upper()}`",
                f"`{flag}`" if f"{flag} " in shown else "",
                _default_setting(field),
                texts.get(field.name, ""),
            )
        )
    return _joined(
        [
            "# Settings",
            "How a node runs on its machine. A flag is stronger than the environment variable, "
            "which is stronger than the TOML file, which is stronger than the default. The file is "
            f"the one that `--config` or `{config.CONFIG_VARIABLE}` names, or else "
            "`gossamer/config.toml` in the user's configuration folder (`~/.config` on Linux) if "
            "it is there. `gossamer config edit` opens it, and `gossamer config show` says where "
            "each value comes from. All mistakes are reported at once.",
            _table(("key of the file", "variable", "flag", "default", "meaning"), rows),
        ]
    )


def _default_setting(field: msgspec.structs.FieldInfo) -> str:
    if field.name == "state_dir":
        return "the user's state folder (`~/.local/state/gossamer` on Linux)"
    return _code(field.default)


def manifest_page() -> str:
    """The keys of the manifest file with their meaning and the default preset's value."""
    values = draft.draft_of_preset()
    parts = [
        "# Manifest keys",
        "`gossamer init` writes a file with all of these, and `gossamer start --manifest FILE` "
        'founds the run. A shorter file may say `preset = "..."` and only what differs. Ranges '
        "are checked when the run is founded, and each mistake is reported with what is allowed.",
    ]
    for section, explanations in manifest_keys.EXPLANATIONS.items():
        owner: object = getattr(values, section, values)
        if section == "schedule":
            owner = draft.schedule_of(values.inner)
        rows = [
            (f"`{key}`", _type(manifest_keys.HINTS[section][key]), _code(getattr(owner, key)), text)
            for key, text in explanations.items()
        ]
        title = manifest_keys.SECTION_TITLES.get(section, "Keys before the first section.")
        parts.append(f"## {'[' + section + ']' if section else 'The run itself'}\n\n{title}")
        parts.append(_table(("key", "type", f"value of `{DEFAULT_PRESET}`", "meaning"), rows))
    parts.append("## Presets\n\nModel sizes with settings to start from (`--preset NAME`).")
    parts.append(
        _table(
            ("name", "parameters", "summary", "where its settings come from"),
            [
                (f"`{name}`", f"{preset.model.num_parameters:,}", preset.summary, preset.origin)
                for name, preset in PRESETS.items()
            ],
        )
    )
    return _joined(parts)


def metric_names() -> list[str]:
    """The names of all of a node's metrics as Prometheus shows them, sorted."""
    return sorted(name for name, _, _, _ in _metrics())


def metrics_page() -> str:
    """The registry of a node: name, type, labels with their values, meaning."""
    rows = [(f"`{name}`", kind, labels, text) for name, kind, labels, text in sorted(_metrics())]
    return _joined(
        [
            "# Metrics",
            "At `/metrics`, in the formats of Prometheus and OpenMetrics. Units are base units. "
            "The values of a label are a fixed set that is there from the start, and no label "
            "holds a peer id. Those of `gossamer_gpu_` are there on machines with an NVIDIA GPU.",
            _table(("name", "type", "labels", "meaning"), rows),
        ]
    )


def _metrics() -> list[tuple[str, str, str, str]]:
    found = []
    for family in Metrics(Gpus()).registry.collect():
        suffix = "_total" if family.type == "counter" else ""
        labels = _labels(family.samples)
        found.append((family.name + suffix, family.type, labels, family.documentation))
    return found


def _labels(samples: list[Sample]) -> str:
    values: dict[str, list[str]] = {}
    for sample in samples:
        for name, value in sample.labels.items():
            if name != "le" and value not in values.setdefault(name, []):
                values[name].append(value)
    return "; ".join(
        f"`{name}`" if name in _FREE_LABELS else f"`{name}`: {', '.join(listed)}"
        for name, listed in values.items()
    )


_FREE_LABELS = ("version", "python", "torch")
"""Labels whose values are those of the machine that builds the page."""


def http_page() -> str:
    """The routes of the HTTP endpoint, and the fields of `/api/status`."""
    parts = [
        "# HTTP endpoint",
        f"At `{config.DEFAULT_API}` unless the setting `api` says otherwise. An order (POST) "
        "needs the header `X-Gossamer: 1`, no `Origin` header, a sender on this machine that is no "
        "proxy, and `Authorization: Bearer` with the secret in the file `token` of the state "
        "directory. "
        "The `Host` header must be an address, a loopback name, or a name of the setting "
        "`api_hosts`. No request has a body.",
        _table(("method", "path", "meaning"), _routes()),
        "## Fields of /api/status\n\n`null` means: not known yet. `gossamer status --json` "
        "prints the same.",
    ]
    for struct in _status_structs():
        title = "" if struct is status.Status else f"### {struct.__name__}\n\n"
        texts = _field_texts(struct)
        rows = [
            (
                f"`{field.name}`",
                _type(field.type),
                re.sub(r"\bNone\b", "null", texts.get(field.name, "")),
            )
            for field in msgspec.structs.fields(struct)
        ]
        parts.append(title + _table(("field", "type", "meaning"), rows))
    return _joined(parts)


_ROUTE_TEXTS = {
    "/": "The status page, for a browser.",
    "/api/status": "The status as JSON.",
    "/api/credit": "The tokens of each member in the run, as JSON; 503 before the first count.",
    "/api/samples": "What the model wrote for the owner's prompts, by round, as JSON.",
    "/api/log": "The newest lines of the log, as JSON; needs what orders need.",
    "/join.svg": "The link for `gossamer join` as a QR code.",
    "/metrics": "The metrics, for Prometheus.",
    "/livez": "200 while the process answers, also where it refuses other requests.",
    "/readyz": "200 while the node takes part in rounds, otherwise 503 with its phase.",
    "/api/pause": "Like `gossamer pause`; `?seconds=7200` is `--for 2h`, and `?after_round=1` is "
    "`--after-round`.",
    "/api/resume": "Like `gossamer resume`.",
    "/api/limits": "Like `gossamer limits set`: `?upload=10&memory=8GiB`. 400 with a sentence for "
    "each limit that cannot be set; then none is.",
    "/api/finish": "Like `gossamer finish`.",
    "/api/leave": "Like `gossamer leave`.",
}


def _routes() -> list[tuple[str, str, str]]:
    """Read from the source of the module: an application that is built needs a running node.

    Raises:
        KeyError: a route has no sentence in `_ROUTE_TEXTS`.
    """
    rows = []
    for node in ast.walk(ast.parse(inspect.getsource(http))):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func) == Route.__name__):
            continue
        path = ast.literal_eval(node.args[0])
        methods = [ast.literal_eval(word.value) for word in node.keywords if word.arg == "methods"]
        rows.append((", ".join(methods[0]) if methods else "GET", f"`{path}`", _ROUTE_TEXTS[path]))
    return rows


def _status_structs() -> list[type[msgspec.Struct]]:
    """`Status` and every struct in its fields, each once."""
    found: list[type[msgspec.Struct]] = []
    waiting: list[Hint] = [status.Status]
    while waiting:
        hint = waiting.pop(0)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in found:
            found.append(hint)
            waiting += [field.type for field in msgspec.structs.fields(hint)]
        waiting += [part for part in get_args(hint) if get_origin(hint) is not Literal]
    assert Capacity not in found, "the status shows capacities with named fields"
    return found


def _field_texts(struct: type) -> dict[str, str]:
    """The string below each field in the source of a class: Python itself drops it."""
    body = ast.parse(inspect.getsource(struct).lstrip()).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for before, node in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            texts[before.target.id] = " ".join(node.value.value.split())
    return texts


def _type(hint: Hint) -> str:
    """A type for people who do not write Python."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if arguments:  # X | None
        return " or ".join("null" if a is type(None) else _type(a) for a in arguments)
    names: dict[Hint, str] = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "true or false",
        draft.SourceDraft: "tables of `path` and `weight`",
        LoraConfig: "table of `rank`, `alpha`, `targets` and, if wanted, `weights`",
    }
    if hint in names:
        return names[hint]
    return f"[{hint.__name__}](#{hint.__name__.lower()})" if isinstance(hint, type) else str(hint)


def _code(value: Value) -> str:
    if isinstance(value, tuple):
        return ", ".join(_code(item) for item in value) or "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value != "" else "empty"


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) + " |"
        for line in lines
    )


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```"


def _joined(parts: list[str]) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, content in pages().items():
        target = Path(sys.argv[1]) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        print(target)
