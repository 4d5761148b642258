"""The documents for people: their limits, what they name exists, and the reference is complete."""

import functools
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from gossamer.node.app.http import http
from gossamer.node.base.settings.settings import Settings
from gossamer.node.command_table import app
from gossamer.node.commands.views import status_view
from gossamer.node.runs.planning.manifest_keys import HINTS
from gossamer.node.storage.state_names import HELD_NAME, KEPT_NAMES, RUN_NAMES
from gossamer.node.telemetry.metrics import Metrics
from gossamer.protocol.rounds.states import TABLES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
README_LINES_MAX = 120
COLUMNS_MAX = 120
GLOSSARY_WORDS_MAX = 40

# Names of a state directory's files, of what commands write, and of the user's own.
NOT_OF_THE_REPOSITORY = {"run.toml", "gossamer.env", "model/", "chain/", "blocks/", "work/"}
# Files of a Hugging Face folder.
NOT_OF_THE_REPOSITORY |= {
    "config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "smollm2",
    "better",
    "better-gguf",
    "model.gguf",
}

OF_OTHER_VERSIONS = {"optimizer"}
"""Names in a state directory that only older versions wrote."""

DOCUMENTS = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "protocol/SPEC.md"])
TOP = {
    path.name
    for path in ROOT.iterdir()
    if path.is_dir() and (not path.name.startswith(".") or path.name in (".ci", ".github"))
}
NAMES = {path.name for top in TOP for path in (ROOT / top).rglob("*") if path.is_file()}
_CODE = re.compile(r"`([^`\n]+)`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SUFFIXES = (".py", ".md", ".toml", ".json", ".yml", ".yaml", ".txt", ".service", ".html", ".png")


def load(name: str) -> ModuleType:
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


reference = load("generate_reference")
diagrams = load("generate_diagrams")
hooks = load("hooks")


@functools.cache
def generated_pages() -> dict[str, str]:
    pages: dict[str, str] = reference.pages() | diagrams.pages()
    return pages


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= README_LINES_MAX
    # The set-up command of the tests is one line, because it is copied and CI reads it.
    command = subprocess.run(
        [ROOT / ".ci/steps/install", "--command"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert [line for line in lines if len(line) > COLUMNS_MAX] == [command]


def test_pictures_are_small() -> None:
    pictures = sorted(DOCS.rglob("*.png"))
    assert pictures
    assert [path for path in pictures if path.stat().st_size > 150_000] == []


def names_of_files(text: str) -> list[str]:
    """Whatever in backticks can only be a path: it has a slash and a known suffix, or a folder."""
    found = []
    for code in _CODE.findall(_FENCE.sub("", text)):
        for word in code.split():
            if "://" in word or word.startswith(("/", "~", "-", "$")) or "@" in word:
                continue
            path = word.partition("::")[0].rstrip(",.")
            if path.startswith("tests.") and not path.endswith(_SUFFIXES):
                path = path.replace(".", "/") + ".py"  # `python -m tests.benchmarks.ring`
            has_folder = "/" in path.rstrip("/") and path.split("/")[0] in TOP
            if path.endswith(_SUFFIXES) or has_folder or path.rstrip("/") in TOP:
                found.append(path)
    return found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_a_document_names_exist(path: Path) -> None:
    if path.name == "CHANGELOG.md":
        text = path.read_text().partition("\n## [0.")[0]  # later versions may move what it names
    else:
        text = path.read_text()
    unknown = [
        name
        for name in names_of_files(text)
        if name not in NOT_OF_THE_REPOSITORY
        and not (list(ROOT.glob(name)) if "*" in name else (ROOT / name).exists())
        # Without a folder it is a file beside the page, or a script whose folder was said before.
        and ("/" in name or name not in NAMES)
    ]
    assert unknown == []


def test_names_of_files_are_found() -> None:
    text = "See `node/gone.py`, `python -m tests.gone.run --seeds 3` and `docs/gone`, not `a/b`."
    assert names_of_files(text) == ["node/gone.py", "tests/gone/run.py", "docs/gone"]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_of_a_document_lead_to_files(path: Path) -> None:
    generated = {f"docs/{name}" for name in generated_pages()}
    broken = []
    for _, _, target, _ in hooks._LINK.findall(_FENCE.sub("", path.read_text())):
        place = (path.parent / target).resolve()
        if "://" in target or place.exists():
            continue
        if place.relative_to(ROOT).as_posix() not in generated:
            broken.append(target)
    assert broken == []


def test_glossary_is_short_and_sorted() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| ([^|]*) \| ([^|]*) \|$", (DOCS / "glossary.md").read_text(), re.M
    )
    words = [row[0] for row in rows if row[0] not in ("word", "---")]
    assert 0 < len(words) <= GLOSSARY_WORDS_MAX
    assert words == sorted(words)
    assert all(meaning and source for _, meaning, source in rows)


def test_every_decision_is_in_the_overview_once_and_in_form() -> None:
    overview = (DOCS / "decisions/index.md").read_text()
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert sorted(re.findall(r"\((\d+-[^)]+)\)", overview)) == [page.name for page in pages]
    for number, page in enumerate(pages, start=1):
        assert page.name.startswith(f"{number:04d}-")
        headings = re.findall(r"^##? (.+)$", page.read_text(), re.M)
        assert headings[0].startswith(f"{number}. ")
        assert headings[1:] == ["Context", "Decision", "What was tried", "Consequences"]
        assert f"[{headings[0]}]({page.name})" in overview


def test_every_benchmark_page_says_how_it_was_made() -> None:
    for page in sorted((DOCS / "benchmarks").glob("*.md")):
        if page.name == "index.md":
            continue
        text = page.read_text()
        for part in ("**Answer.**", "**Set-up.**", "**Commit.**", "**Command.**", "\n| --- |"):
            assert part in text, (page.name, part)
        assert f"]({page.name})" in (DOCS / "benchmarks/index.md").read_text()


def test_the_table_of_back_ups_has_all_of_the_state_directory() -> None:
    table = (DOCS / "guides/operator.md").read_text().partition("## Back up")[2]
    first_cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    said = {name.rstrip("/") for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)}
    missing = {*KEPT_NAMES, *RUN_NAMES, HELD_NAME} - said - OF_OTHER_VERSIONS
    assert missing == {"manifest.copy", "roll.copy"}, "these stand beside their files"


def test_reference_has_every_command() -> None:
    page = generated_pages()["reference/commands.md"]
    for name in app:
        if not name.startswith("-"):
            assert f"\n## gossamer {name}\n\n```text\nUsage: gossamer {name}" in page


def test_reference_has_every_metric_with_its_text() -> None:
    page = generated_pages()["reference/metrics.md"]
    for family in Metrics().registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        assert re.search(rf"^\| `{name}` \| {family.type} \| .* \| .+ \|$", page, re.M), name


def test_reference_has_every_setting_and_manifest_key() -> None:
    settings = generated_pages()["reference/settings.md"]
    for name in Settings.__struct_fields__:
        assert re.search(
            rf"^\| `{name}` \| `GOSSAMER_{name.upper()}` \|.* \| [^|]+ \|$", settings, re.M
        )
    manifest = generated_pages()["reference/manifest.md"]
    for keys in HINTS.values():
        for key in keys:
            assert f"\n| `{key}` |" in manifest


def test_reference_has_every_route() -> None:
    page = generated_pages()["reference/http.md"]
    routes = re.findall(r'Route\("([^"]+)"', inspect.getsource(http))
    assert {"/", "/metrics", "/api/credit", "/api/pause"} <= {*routes}
    for route in routes:
        assert re.search(rf"^\| (GET|POST) \| `{route}` \| .+ \|$", page, re.M), route


def test_the_sample_of_the_status_has_the_columns_of_the_command() -> None:
    text = (DOCS / "guides/volunteer.md").read_text()
    (head,) = re.findall(r"^peer +phase .*$", text, re.M)
    assert head.split() == [name for name, _ in status_view._COLUMNS]
    below = text.partition(head)[2].strip().splitlines()[:2]
    assert all(line.split()[-1] in ("direct", "crossed") for line in below)


def test_reference_has_every_transition_of_every_machine() -> None:
    page = generated_pages()["reference/machines.md"]
    for table in TABLES:
        assert f"\n## {table.name.capitalize()}\n" in page
        for state, event, following in table.rows():
            assert f"\n| {state} | {event} | {following} |" in page
            ends = (name.replace(" ", "_") for name in (state, following))
            assert f"    {' --> '.join(ends)}: {event}\n" in page


def test_links_are_rewritten_for_the_site() -> None:
    known = {"docs/a.md": "a.md", "ARCHITECTURE.md": "architecture.md", "docs/b/c.md": "b/c.md"}

    def rewritten(text: str, origin: str, place: str) -> str:
        result: str = hooks.rewrite_links(text, origin, place, known)
        return result

    assert rewritten("[x](docs/a.md#y)", "ARCHITECTURE.md", "architecture.md") == "[x](a.md#y)"
    assert (
        rewritten("[x](../../ARCHITECTURE.md)", "docs/b/c.md", "b/c.md")
        == "[x](../architecture.md)"
    )
    # A file that is not in the site is text; what does not exist is left for --strict to find.
    assert rewritten("[x](../pyproject.toml)", "docs/a.md", "a.md") == "x"
    assert rewritten("[x](../gone.md)", "docs/a.md", "a.md") == "[x](../gone.md)"
    assert rewritten("```\n[x](../pyproject.toml)\n```", "docs/a.md", "a.md").count("](") == 1


def test_version_has_its_section_in_the_change_log() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.M)
    headings = re.findall(r"^### (.+)$", text, re.M)
    assert set(headings) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert max(map(len, text.splitlines())) <= COLUMNS_MAX  # one line an entry


# What CI does


def workflow() -> dict[str, dict[str, object]]:
    loaded: dict[str, dict[str, object]] = yaml.safe_load(
        (ROOT / ".github/workflows/ci.yml").read_text()
    )
    return loaded


def test_the_workflow_runs_every_step_and_no_other() -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text()
    (job,) = workflow()["jobs"].values()
    assert isinstance(job, dict)
    matrix = set(job["strategy"]["matrix"]["step"])
    steps = {path.name for path in (ROOT / ".ci/steps").iterdir()} - {"common"}
    # Its three steps with tests run the long ones too.
    assert matrix | {"install", "tools", "long"} == steps
    for name in ("rules", "node", "end-to-end"):
        commands = (ROOT / ".ci/steps" / name).read_text()
        assert commands.count("bin/pytest") == commands.count("bin/pytest --long")
    for name in re.findall(r"\.ci/steps/([\w-]+)", text):
        assert name in steps
    for name in steps:
        assert (ROOT / ".ci/steps" / name).stat().st_mode & 0o111, f"{name} is not executable"


def test_every_folder_of_tests_is_in_exactly_one_step() -> None:
    def paths(step: str, pattern: str) -> list[str]:
        return re.findall(pattern, (ROOT / ".ci/steps" / step).read_text())

    named = [*paths("rules", r"(?<!-)\b(tests/\w+)"), *paths("end-to-end", r"\b(tests/\w+)")]
    left_out = paths("node", r"--ignore (tests/\w+)")
    assert sorted(named) == sorted(left_out)
    for folder in named:
        assert (ROOT / folder).is_dir()


def test_the_numbers_in_capitals_of_the_specification_are_constants_of_the_protocol() -> None:
    text = (ROOT / "protocol/SPEC.md").read_text()
    named = set(re.findall(r"\b[A-Z]+(?:_[A-Z0-9]+)+\b", text))
    assert len(named) > 30
    code = "\n".join(path.read_text() for path in sorted((ROOT / "protocol").rglob("*.py")))
    assert not [name for name in sorted(named) if not re.search(rf"^{name}\b", code, re.MULTILINE)]
