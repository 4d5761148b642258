"""How long does a person wait for the page of a node that trains?

    python -m tests.benchmarks.page_load --times 20

Starts a node with the preset `tiny`, which trains on all threads that torch takes, and asks it one
request after the other. With Chromium and its driver it also opens the page as a person does: from
the call until the load event, with the browser's own clock (`PerformanceNavigationTiming`).

On a machine that others use, `--first` (root) puts the daemon, the requests and the browser before
all other programs (`SCHED_FIFO`), and leaves the trainer among these.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gossamer.node.app.http.client import page_link
from gossamer.node.demo.local_swarm import LocalSwarm
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.status import Status

PATHS = ("/", "/api/status", "/api/credit", "/api/samples")
FIRST_ROUND_SECONDS = 600.0
ANSWER_SECONDS = 30.0


def trains(status: Status) -> bool:
    return status.phase == "training" and status.round >= 1


@contextmanager
def _browser() -> Iterator[Any]:
    """A browser without a window, as the tests of the page have it."""
    from selenium import webdriver  # here: the requests need none

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    service = webdriver.ChromeService(str(shutil.which("chromedriver")))
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()


def _requests(base: str, path: str, times: int) -> list[float]:
    """Milliseconds of each request."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{base}{path}", timeout=ANSWER_SECONDS) as answer:
            answer.read()
        found.append(1e3 * (time.perf_counter() - began))
    return found


def _loads(link: str, times: int) -> list[float]:
    """Milliseconds from a navigation until the load event, by the browser's own clock."""
    found = []
    with _browser() as browser:
        for _ in range(times + 1):  # the first one starts the browser's tab
            browser.get("about:blank")
            browser.get(link)
            found.append(
                browser.execute_script(
                    "return performance.getEntriesByType('navigation')[0].loadEventStart"
                )
            )
    return found[1:]


def _put_first(daemon: int) -> None:
    """Puts this process, all that it starts from now on and the daemon before others."""
    for pid in (os.getpid(), *map(int, os.listdir(f"/proc/{daemon}/task"))):
        os.sched_setscheduler(pid, os.SCHED_FIFO, os.sched_param(10))


def _print(name: str, milliseconds: list[float]) -> None:
    median, longest = statistics.median(milliseconds), max(milliseconds)
    print(f"| {name} | {median:.0f} ms | {longest:.0f} ms |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--first", action="store_true", help="before all other programs")
    options = parser.parse_args()
    times = options.times
    with tempfile.TemporaryDirectory() as folder, LocalSwarm(Path(folder)) as swarm:
        node = swarm.found()
        node.wait_for(trains, FIRST_ROUND_SECONDS, "a round")
        link = page_link(StateDir(node.root))
        base = link.partition("/#")[0]
        before = os.getloadavg()[0]
        if options.first and node.process is not None:
            _put_first(node.process.pid)
        print("| | median | longest |\n| --- | --- | --- |")
        for path in PATHS:
            _print(f"`{path}`", _requests(base, path, times))
        if shutil.which("chromium") and shutil.which("chromedriver"):
            _print("the page in a browser", _loads(link, times))
        status = node.wait_for(trains, FIRST_ROUND_SECONDS, "training after the requests")
        print(f"load {before:.0f} to {os.getloadavg()[0]:.0f}; round {status.round} by then")


if __name__ == "__main__":
    main()
