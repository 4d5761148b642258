from pathlib import Path

from gossamer.node.storage.owner_files import LossFile
from gossamer.node.telemetry.loss_history import Heldout, LossHistory
from gossamer.node.telemetry.status import LossPoint

RUN = b"r" * 32


def curve(num_rounds: int) -> LossHistory:
    history = LossHistory()
    for number in range(1, num_rounds + 1):
        history.add(LossPoint(round=number, loss=1.0 / number))
    return history


def test_a_curve_goes_on_as_if_there_had_been_no_restart(tmp_path: Path) -> None:
    for num_rounds in (1, 100, 239, 240, 500, 1000, 5003):
        history, file = curve(num_rounds), LossFile(tmp_path / "losses", RUN)
        file.save(history.points(), history.stride, Heldout(num_rounds, 2.5, 0.9))
        loaded, heldout = file.load()
        assert heldout == Heldout(num_rounds, 2.5, 0.9)
        assert loaded.points() == history.points()
        for number in range(num_rounds + 1, num_rounds + 300):
            point = LossPoint(round=number, loss=0.5)
            history.add(point)
            loaded.add(point)
        spacing = [b.round - a.round for a, b in zip(loaded.points(), loaded.points()[1:-1])]  # noqa: B905
        assert max(spacing) <= 2 * min(spacing)
        assert len(loaded.points()) > 60 or num_rounds + 300 < 60


def test_a_file_that_is_missing_damaged_or_another_runs_is_an_empty_curve(tmp_path: Path) -> None:
    path = tmp_path / "losses"
    file = LossFile(path, RUN)
    assert file.load()[0].points() == ()
    for data in (b"", b"\xff\xfe", b"\x93\x01\x02\x03", bytes(2 * 1024 * 1024)):
        path.write_bytes(data)
        assert file.load()[0].points() == ()
    LossFile(path, b"s" * 32).save(curve(3).points(), 1, None)
    assert file.load()[0].points() == ()
