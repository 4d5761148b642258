import tempfile
from pathlib import Path

import pytest
from rich.console import Console

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.demo import story
from gossamer.node.demo.live_view import print_summary
from gossamer.node.demo.plot import Mark, draw_loss_curve
from gossamer.node.demo.record import Record
from gossamer.node.demo.story import MANIFEST, failures, run_demo
from gossamer.node.runs.planning.manifest_file import parse_manifest_file
from gossamer.node.telemetry.status import LastRound, LossPoint, Status


def answer(name: str, number: int, loss: float, *, digest: str = "aa", head: str = "") -> Status:
    members = ("peer-a", "peer-b")
    return Status(
        peer_id=f"peer-{name}",
        run_id="ab" * 32,
        version="0.1.0",
        phase="training",
        round=number,
        head=head or f"head{number}",
        state_digest=f"{digest}{number}",
        swarm_tokens_total=number * 1000,
        last_round=LastRound(
            round=number,
            members=members,
            contributors=members,
            duration_seconds=1.0,
            bytes_sent=1000 * number,
            bytes_received=1,
            outcome="committed",
        ),
        loss_history=(LossPoint(round=number, loss=loss),),
    )


def record_of(*losses: float) -> Record:
    record = Record()
    for number, loss in enumerate(losses, start=1):
        for name in "ab":
            record.see(name, answer(name, number, loss), 2.0 * number)
    return record


def test_a_run_that_learns_alike_is_well() -> None:
    record = record_of(5.0, 4.0, 3.0)

    assert failures(record) == []
    digests = record.digests()
    assert digests is not None
    assert (digests.round, digests.num_compared, digests.num_alike) == (3, 3, 3)
    assert record.tokens_per_second == pytest.approx(500.0)
    assert record.newest_ring == ("a", "b")
    assert record.bytes_per_round("a") == (2000.0, 3)


def test_a_loss_that_does_not_fall_fails() -> None:
    assert failures(record_of(4.0, 4.1)) == ["the loss in training did not fall"]
    assert failures(record_of(4.0)) == ["fewer than two rounds were committed"]


def test_held_out_text_decides_once_it_was_evaluated_twice() -> None:
    record = record_of(5.0, 4.0, 3.0)
    record.peer("a").heldout_losses[1] = 3.0
    assert failures(record) == []
    record.peer("b").heldout_losses[3] = 3.5

    assert failures(record) == ["the loss on held-out text did not fall"]


def test_states_that_differ_fail() -> None:
    record = record_of(5.0, 4.0)
    record.see("b", answer("b", 2, 4.0, digest="bb", head="other"), 5.0)

    assert failures(record) == ["the living peers' states differ"]


def test_a_head_with_two_states_fails_even_if_it_is_long_past() -> None:
    record = record_of(5.0, 4.0)
    record.see("b", answer("b", 1, 5.0, digest="bb"), 5.0)

    assert failures(record) == ["the living peers' states differ"]


def test_only_the_living_must_agree() -> None:
    record = record_of(5.0, 4.0)
    record.see("a", answer("a", 3, 3.0), 7.0)
    assert record.common_round() == 2
    record.peer("b").is_alive = False

    assert record.common_round() == 3


def test_the_summary_says_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    record = record_of(5.0, 4.0)
    record.see("b", answer("b", 2, 4.0, digest="bb"), 5.0)

    print_summary(record, Console(), seconds=1.0, picture=None, folder=Path("/logs"))

    shown = capsys.readouterr().out
    assert "NOT EQUAL at round 2" in shown
    assert "head head2 has two states" in shown


def test_the_summary_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Record(), Console(), seconds=1.0, picture=None, folder=Path("/logs"))

    assert "fewer than two rounds" in capsys.readouterr().out


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()

    with pytest.raises(ConfigError, match="not empty"):
        run_demo(tmp_path)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    for place in (tmp_path / "mine", tmp_path / "mine" / "below"):
        with pytest.raises(ConfigError, match="name a new or an empty folder"):
            run_demo(place)


def test_a_demo_that_is_stopped_says_what_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_demo: story.Demo) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(story.Demo, "play", stop)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run_demo(None)
    (folder,) = tmp_path.glob("gossamer-demo-*")
    assert f"rm -r {folder}\n" in capsys.readouterr().out


def test_the_manifest_is_valid(tmp_path: Path) -> None:
    assert parse_manifest_file(MANIFEST, tmp_path).name == "demo"


def test_a_curve_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"

    draw_loss_curve(
        path,
        title="a run",
        training={1: 5.0, 2: 4.0},
        heldout={2: 4.5},
        marks=[Mark(2, "node1 killed")],
    )

    assert path.read_bytes().startswith(b"\x89PNG")


def test_the_summary_says_what_stays_and_how_to_delete_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my demo"
    (folder / "node1").mkdir(parents=True)
    (folder / "node1" / "block").write_bytes(bytes(1500))
    print_summary(Record(), Console(width=300), seconds=1.0, picture=None, folder=folder)
    assert f"1.5 kB stay; to delete them: rm -r '{folder}'" in capsys.readouterr().out
