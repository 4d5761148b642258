from pathlib import Path

import pytest

from gossamer.node.base.disk_health import DiskError
from gossamer.node.base.pausing import PAUSE_SECONDS_MAX, UserPause
from gossamer.node.storage.owner_orders import read_pause, write_pause

NOW = 1_700_000_000.0


def test_an_order_holds_until_it_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "paused"
    assert read_pause(path, NOW) is None
    write_pause(path, UserPause())
    assert read_pause(path, NOW) == UserPause()
    write_pause(path, None)
    write_pause(path, None)
    assert read_pause(path, NOW) is None


def test_a_pause_with_an_end_holds_until_then(tmp_path: Path) -> None:
    path = tmp_path / "paused"
    write_pause(path, UserPause(NOW + 7200, 7200, after_round=True))
    assert read_pause(path, NOW + 7000) == UserPause(NOW + 7200, 200)
    assert read_pause(path, NOW + 7200) is None
    # The clock was set back by a year.
    back = NOW - 365 * 86_400
    assert read_pause(path, back) == UserPause(back + 7200, 7200)


@pytest.mark.parametrize(
    "content",
    ["x", "1 2 3", "nan 5", "inf 5", "1e400 5", "5 nan", "5 -1", f"5 {PAUSE_SECONDS_MAX + 1}",
     "5 " + "1" * 300, "\xff"],
)  # fmt: skip
def test_a_damaged_file_is_a_pause_that_the_owner_ends(tmp_path: Path, content: str) -> None:
    path = tmp_path / "paused"
    path.write_bytes(content.encode("latin-1"))
    assert read_pause(path, NOW) == UserPause()


def test_a_folder_that_is_gone_is_a_disk_error(tmp_path: Path) -> None:
    with pytest.raises(DiskError):
        write_pause(tmp_path / "none" / "paused", None)
