"""`gossamer report`: a page that can be published."""

import base64
import csv
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gossamer.node.cli import run_command
from gossamer.node.commands.views import report
from gossamer.node.runs.results.credit import read_credits
from gossamer.node.runs.results.report import MEMBERS_MAX, Sample, page, ticks
from gossamer.node.storage.owner_files import (
    LossFile,
    MemberName,
    NamesFile,
    RoundSamples,
    SamplesFile,
)
from gossamer.node.storage.owner_files import Sample as Sample_
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.status import LossPoint
from tests.support.chains import OTHERS, commit_rounds, run_in

A, B, *_ = (each.peer_id for each in OTHERS)
ATTACK = "<script>alert(1)</script>\"'&\x1b[2J\u202e"
POINTS = [
    LossPoint(
        round=number,
        loss=6 / number,
        heldout_loss=5 / number,
        heldout_bits_per_byte=2.4 / number,
    )
    for number in (1, 2, 3)
]


class Tags(HTMLParser):
    """The elements of a page, and whether all of them are closed."""

    VOID = ("meta", "line")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state_dir = StateDir(tmp_path / "state")
    manifest = run_in(state_dir, name=ATTACK)
    commit_rounds(state_dir, manifest, [{A: 100, B: 50}, {B: 350}])
    LossFile(state_dir.losses_path, manifest.run_id).save(tuple(POINTS), 1, Heldout(3, 5 / 3))
    return state_dir


def write(state: StateDir, folder: Path, *options: str) -> int:
    return run_command(["report", str(folder), "--state-dir", str(state.root), *options])


def test_the_page_has_curve_and_members_and_loads_nothing(state: StateDir, tmp_path: Path) -> None:
    folder = tmp_path / "public" / "run"
    assert write(state, folder) == 0
    text = (folder / "index.html").read_text()
    tags = Tags(text)
    assert tags.open == []
    assert not {"script", "img", "link", "iframe", "a"} & {tag for tag, _ in tags.seen}
    assert not any(
        name in ("src", "href", "style") or name.startswith("on")
        for _, attributes in tags.seen
        for name in attributes
    )
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy is not None
    # The page is of round 2.
    assert "<dt>held-out loss</dt><dd>1.6667 (of round 3)</dd>" in text
    assert "<dt>held-out bits per byte</dt><dd>0.8000 (of round 3)</dd>" in text
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy[1].startswith(f"default-src 'none'; style-src 'sha256-{digest}'")
    assert text.index(B) < text.index(A)  # by rank
    assert "80.0%" in text
    assert len([tag for tag, _ in tags.seen if tag == "polyline"]) == 2
    rows = list(csv.DictReader((folder / "members.csv").read_text().splitlines()))
    assert [(row["peer_id"], row["tokens"]) for row in rows] == [(B, "400"), (A, "100")]
    assert "you" not in rows[0]


def test_texts_of_others_are_escaped(state: StateDir) -> None:
    text = page(read_credits(state), POINTS, [Sample(ATTACK, ATTACK)], 0.0)
    assert "<script" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;") == 4
    assert Tags(text).open == []


def test_names_stand_beside_ids_and_are_escaped(state: StateDir) -> None:
    names = {B: MemberName("<i>Ada</i>", "<u>us</u>"), "gone": MemberName("Eve")}
    text = page(read_credits(state), POINTS, [], 0.0, names)
    assert f"<b>&lt;i&gt;Ada&lt;/i&gt;</b> (&lt;u&gt;us&lt;/u&gt;) {B}</td>" in text
    assert f"<td class=id>{A}</td>" in text
    assert "Eve" not in text
    assert Tags(text).open == []


@pytest.mark.parametrize(
    ("name", "own"), [("index.html", "<html"), ("members.csv", "rank,peer_id")]
)
def test_a_file_of_somebody_else_stays(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, own: str
) -> None:
    other = tmp_path / name
    other.write_text("<p>mine</p>")
    assert write(state, tmp_path) == 2
    assert f"{other} was not written by this command" in capsys.readouterr().err
    assert other.read_text() == "<p>mine</p>"
    assert list(tmp_path.glob("*.*")) == [other]
    assert write(state, tmp_path, "--force") == 0
    assert own in other.read_text()
    assert write(state, tmp_path) == 0  # its own page and table, anew


def test_a_file_is_no_folder(
    state: StateDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "notes"
    file.write_text("mine")
    assert write(state, file) == 2
    assert "is no folder: name another one" in capsys.readouterr().err


def test_samples_are_texts_of_the_model(
    state: StateDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "read_state", lambda _settings: None)
    monkeypatch.setattr(
        report, "pieces", lambda _s, _state, prompt, sampling: [f"[{prompt}", f" {sampling.seed}]"]
    )
    assert write(state, tmp_path, "--sample", "Once", "--sample", "<b>") == 0
    text = (tmp_path / "index.html").read_text()
    assert "<pre><b>Once</b>[Once 0]</pre><pre><b>&lt;b&gt;</b>[&lt;b&gt; 1]</pre>" in text
    assert write(state, tmp_path, *["--sample", "x"] * 17) == 2
    assert write(state, tmp_path, "--sample", "x" * 1_000_000) == 2


def test_names_and_samples_that_the_node_kept_are_on_the_page(
    state: StateDir, tmp_path: Path
) -> None:
    run_id = read_credits(state).manifest.run_id
    NamesFile(state.names_path, run_id).save({A: MemberName("Ada", "us")})
    rounds = [RoundSamples(number, (Sample_("<b>", f"& {number}"),)) for number in (1, 2)]
    SamplesFile(state.samples_path, run_id).save(tuple(rounds))
    assert write(state, tmp_path) == 0
    text = (tmp_path / "index.html").read_text()
    assert f"<b>Ada</b> (us) {A}" in text
    newest, before = (
        f"<h3>After round {number}</h3><pre><b>&lt;b&gt;</b>&amp; {number}</pre>"
        for number in (2, 1)
    )
    assert newest + before in text
    assert Tags(text).open == []


def test_a_run_without_rounds_or_curve(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    run_in(state_dir)
    text = page(read_credits(state_dir), [LossPoint(round=1, loss=float("nan"))], [], 0.0)
    assert "bits per byte" not in text, "a number that is not known is absent"
    assert "There is no curve yet" in text
    assert "No round has been committed yet" in text


def test_a_page_of_a_large_run_is_bounded(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    manifest = run_in(state_dir)
    credits = read_credits(state_dir)
    commit_rounds(state_dir, manifest, [{A: 1}])
    (row,) = read_credits(state_dir).rows
    many = type(credits)(manifest, 1, credits.head, 1, 0, (row,) * (MEMBERS_MAX + 7))
    text = page(many, POINTS, [], 0.0)
    assert text.count("<tr><td") == MEMBERS_MAX
    assert "7 more are in members.csv" in text


@pytest.mark.parametrize(
    ("least", "most", "expected"),
    [
        (1, 3, [1.0, 1.5, 2.0, 2.5, 3.0]),
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (1.44, 7.9, [0, 2, 4, 6, 8]),
    ],
)
def test_scales_have_round_numbers(least: float, most: float, expected: list[float]) -> None:
    assert ticks(least, most) == pytest.approx(expected)


def test_a_scale_of_one_value_has_two_ends() -> None:
    for value in (0.0, 1.0, 1e6, -3.0):
        marks = ticks(value, value)
        assert len(marks) >= 2
        assert marks[0] <= value <= marks[-1]
