import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.reaper import ROOT, VARIABLE, start

PATIENCE_SECONDS = 60.0

RUN_OF_TESTS = """
import subprocess, sys, time
from tests.support import reaper
reaper.start()
child = [sys.executable, "-c", "import time; time.sleep(600)"]
print(subprocess.Popen(child, start_new_session=True).pid, flush=True)
time.sleep(600)
"""


def test_what_a_killed_run_of_tests_has_started_ends() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUN_OF_TESTS], cwd=ROOT, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        left = psutil.Process(int(run.stdout.readline()))
        mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        try:
            assert left.is_running()
            run.kill()
            assert psutil.wait_procs([left], timeout=PATIENCE_SECONDS)[0] == [left]
            assert mine.poll() is None  # it belongs to another run of tests: this one
        finally:
            mine.kill()
            mine.wait()


def test_a_reaper_ends_with_a_run_that_left_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")  # the present mark comes back with the end of this test
    reaper = start()
    assert reaper.stdin is not None
    reaper.stdin.close()
    assert reaper.wait(timeout=PATIENCE_SECONDS) == 0


def test_a_reaper_needs_no_tree_when_the_tests_are_over(tmp_path: Path) -> None:
    support = tmp_path / "tests" / "support"
    support.mkdir(parents=True)
    for name in ("reaper.py", "netns.py"):
        shutil.copy(ROOT / "tests" / "support" / name, support)
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.reaper", "a mark that no process has"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    ) as reaper:
        assert reaper.stdin is not None
        reaper.stdin.write(bytes(1024 * 1024))  # more than a pipe holds: it waits for the end now
        shutil.rmtree(tmp_path / "tests")
        _, errors = reaper.communicate(timeout=PATIENCE_SECONDS)
    assert (reaper.returncode, errors) == (0, b"")
