"""Settings of all tests: hypothesis's search, the place of temporary files, the number of threads.

Hypothesis has the same examples every time, so that a failure in CI is a failure everywhere. For a
long search with new examples: ``pytest tests/fuzz --hypothesis-profile=long``.

Temporary files lie in memory where there is room. Nodes write and sync small files all the time,
and thousands of them in virtual time: on a disk, a fifth of the suite's time was waiting for that.
What no test here is about is how long a disk takes; full, damaged and read-only ones have file
systems of their own or faults of their own. With `TMPDIR` set, that folder is used: so a disk can
be put under the end-to-end tests and the chaos set (``TMPDIR=/var/tmp pytest tests/chaos``).
"""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import structlog
from hypothesis import HealthCheck, settings

from tests.support import preloaded, reaper
from tests.support.long_tests import is_asked_for

MEMORY = Path("/dev/shm")
"""File system in memory on Linux; in containers it is often a very small one."""

MEMORY_BYTES_MIN = 4 * 2**30
"""Free memory that is required: the folders of three runs, nothing removed, were 1.5 GB on a
disk."""


def use_memory_for_temporary_files() -> None:
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    free = min(psutil.disk_usage(str(MEMORY)).free, psutil.virtual_memory().available // 2)
    if free >= MEMORY_BYTES_MIN:
        # The workers of xdist and the daemons of the tests inherit it.
        os.environ["TMPDIR"] = str(MEMORY)
        tempfile.tempdir = None


use_memory_for_temporary_files()

# The settings of the person who runs the tests are none of theirs; daemons of tests inherit it.
os.environ["XDG_CONFIG_HOME"] = os.path.join(tempfile.gettempdir(), "gossamer-tests-no-config")

# Two processes of tests on two cores, and models so small that threads only wait for each other.
# Read when numpy and torch are loaded, which is after this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# As daemons set it for their trainers, which are copies of a process with the same environment.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

settings.register_profile("default", derandomize=True, deadline=None, print_blob=True)
settings.register_profile(
    "long",
    max_examples=20_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

_REAPER = pytest.StashKey["subprocess.Popen[bytes]"]()
"""Held, because the reaper begins when its standard input ends."""

_NUM_LEFT_OUT_NAME = "num_left_out"
_NUM_LEFT_OUT = pytest.StashKey[int]()
"""Tests that are marked `long` and not asked for."""

LONG = (
    # They start real daemons.
    *("chaos/", "e2e/", "internet/", "rogue/", "browser/"),
    # Whole nodes in virtual time, a chain of a hundred thousand rounds, rings with real payloads.
    *("swarms/", "node/whole_nodes/", "node/peers/test_long_chain.py"),
    "node/rounds/test_ring_faults.py",
    # Simulated cards, and a real compiler.
    *("trainer/resources/test_memory.py", "trainer/compiling/test_compiler.py"),
    # They would be among the last.
    *("trainer/test_train.py", "trainer/text/test_word_cuts.py"),
)
"""Folders and files that take long. One that begins when all others are done has one worker wait
for the other."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--real-processes",
        action="store_true",
        help="execute every command anew, instead of forking it from a process with all loaded",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="run the tests that are marked `long` too; a file that is named runs whole without it",
    )


def pytest_configure(config: pytest.Config) -> None:
    # Before anything else is started, so that all of it bears the mark.
    config.stash[_REAPER] = reaper.start()
    if sys.platform == "linux" and not config.getoption("--real-processes"):
        subprocess.Popen = preloaded.Popen  # type: ignore[misc]
    # With `--dist loadfile` xdist begins with the files that have most tests. The longest files
    # have one or two, and would keep one worker busy when the other has nothing left to do.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what is marked `long` unless it is asked for, and puts the files that take longest
    first. The order of all others stays."""
    here = Path(__file__).parent
    left_out = [item for item in items if is_left_out(item, config)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not is_left_out(item, config)]
    config.stash[_NUM_LEFT_OUT] = len(left_out)

    def is_short(item: pytest.Item) -> bool:
        return not item.path.relative_to(here).as_posix().startswith(LONG)

    items.sort(key=is_short)


def is_left_out(item: pytest.Item, config: pytest.Config) -> bool:
    """Returns whether a test is marked `long` and not asked for."""
    return item.get_closest_marker("long") is not None and not is_asked_for(config, item.path)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[_NUM_LEFT_OUT_NAME] = session.config.stash[_NUM_LEFT_OUT]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Each process of xdist has collected all tests, so the number of one is the number of all."""
    node.config.stash[_NUM_LEFT_OUT] = getattr(node, "workeroutput", {}).get(_NUM_LEFT_OUT_NAME, 0)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if number := config.stash.get(_NUM_LEFT_OUT, 0):
        terminalreporter.write_line(f"LEFT OUT {number} tests marked `long`: --long runs them too")


def pytest_collection_finish() -> None:
    """Keeps all that is loaded by now out of the garbage collector's later searches.

    These are hundreds of thousands of objects of torch, libp2p and the tests, which live as long as
    the process. A search with them took 0.28 s of processor time, and 0.08 s without; the trainer
    begins one whenever a pass does not fit in its memory.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _real_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Keeps the processes of a module that is about the real executable from being forked."""
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("real_processes"):
            patch.setattr(subprocess, "Popen", preloaded.REAL_POPEN)
        yield


@pytest.fixture(autouse=True)
def _log_of_its_own() -> Iterator[None]:
    """A test may make the log quiet; the next one may read it.

    The lines of structlog, in columns and colours, were a thirtieth of the time of whole nodes in
    virtual time.
    """
    structlog.configure(processors=[structlog.processors.format_exc_info, _line])
    yield
    structlog.reset_defaults()


def _line(_logger: object, level: str, event: MutableMapping[str, Any]) -> str:
    what, trace = event.pop("event"), event.pop("exception", "")
    values = "".join(f" {name}={value}" for name, value in sorted(event.items()))
    return f"{level}: {what}{values}\n{trace}" if trace else f"{level}: {what}{values}"


@pytest.fixture
def quiet() -> None:
    """Errors alone are logged, and nothing of what an attacked world warns of."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
