"""A status page that a real server serves, Chromium that shows it, and axe-core that checks it."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from gossamer.node.app.http.http import build_app, serve_http
from gossamer.node.app.reporting.credit_view import CreditView
from gossamer.node.base.settings.owner_limits import SCHEDULE
from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.storage.owner_files import RoundSamples, Sample
from gossamer.node.telemetry.metrics import Metrics
from gossamer.node.telemetry.status import (
    CapacityStatus,
    LastRound,
    LimitStatus,
    LossPoint,
    PauseStatus,
    PeerStatus,
    RuleStatus,
    Status,
)
from tests.support.chains import OTHERS

TOKEN = "5e" * 32
HERE = Path(__file__).parent / "js"
INSTALL_SECONDS = 120.0
"""One package of 700 kB."""
PAGE_SECONDS = 20.0
"""Time until the page shows something: a machine under load starts a browser's tab slowly."""

ME, PEER, FAR, AWAY = (each.peer_id for each in OTHERS[:4])
BUSY = Status(
    peer_id=ME,
    run_id="ab" * 32,
    run_name="gossamer",
    version="0.2.0",
    phase="training",
    addresses=(f"/ip4/203.0.113.7/tcp/4610/p2p/{ME}",),
    reach="open",
    reach_text="Reachable at 203.0.113.7 (confirmed by 2)",
    round=40,
    final_round=100,
    inner_step=14,
    inner_steps=20,
    tokens_total=430_592,
    swarm_tokens_total=2_130_944,
    tokens_per_second=7302.0,
    loss=1.5745,
    heldout_loss=1.456,
    num_parameters=467_808,
    capacity=CapacityStatus(
        device="NVIDIA GeForce RTX 4090", device_kind="cuda", device_memory_bytes=24 * 10**9,
        host_memory_bytes=64 * 10**9, cores=16,
    ),
    uptime_seconds=7300.0,
    bytes_sent_total=56_400_000,
    bytes_received_total=66_400_000,
    disk_used_bytes=1_234_567_890,
    peers=(
        PeerStatus(
            peer_id=PEER, name="<i>Ada</i>", phase="averaging", round=40, tokens_per_second=8831.0,
            device="AMD EPYC", device_memory_bytes=25 * 10**9, connected=True, path="direct",
        ),
        PeerStatus(
            peer_id=FAR, phase="syncing", round=38, device="<b>Apple M4</b>",
            device_memory_bytes=16 * 10**9, connected=True, path="relayed", relay=PEER,
        ),
    ),
    last_round=LastRound(
        round=40, members=(ME, PEER, FAR), contributors=(ME, PEER), duration_seconds=12.0,
        bytes_sent=1_200_000, bytes_received=1_200_000, outcome="committed",
    ),
    limits=(
        LimitStatus(
            name="upload", setting="up_limit", unit="Mbit/s", limit=10.0, text="10", used=8.25
        ),
        LimitStatus(
            name="threads", setting="threads", unit="threads", limit=1.0, text="1", used=0.2
        ),
        LimitStatus(name="memory", setting="memory_max", unit="bytes", used=2e9),
        LimitStatus(
            name="temperature", setting="gpu_temperature_max", unit="degrees C", limit=80.0,
            text="80", used=61.0, note="the card does not tell",
        ),
    ),
    schedule=(
        RuleStatus(name="work_hours", text="22:00-07:00", source="schedule set"),
        RuleStatus(name="only_when_idle", text="off"),
        RuleStatus(name="on_battery", text="off"),
        RuleStatus(name="on_metered", text="on"),
        RuleStatus(name="pause_for", text="blender, Google Chrome"),
    ),
    sampled_round=40,
    loss_history=tuple(
        LossPoint(
            round=i,
            loss=1.5 + 6 / (i + 1),
            heldout_loss=1.4 + 6 / (i + 1) if i % 2 else None,
        )
        for i in range(1, 41)
    ),
)  # fmt: skip


SAMPLES = tuple(
    RoundSamples(
        number, (Sample("Once", f" upon <b>{number}</b> times\n\tThe end"), Sample("", "x" * 400))
    )
    for number in (0, 20, 40)
)


class Node:
    """A node as the endpoint sees it: it obeys at once."""

    def __init__(self) -> None:
        self.now = BUSY
        self.orders: list[str] = []
        self.has_credit = True
        self.disk_problem = ""

    def status(self) -> Status:
        return self.now

    def pause(self, seconds: float | None = None, *, after_round: bool = False) -> None:
        self.orders.append(f"pause {seconds} {after_round}")
        hold = PauseStatus(reason="user", after_round=after_round)
        self.now = msgspec.structs.replace(
            self.now,
            phase=self.now.phase if after_round else "paused",
            paused_reason=None if after_round else "user",
            pauses=(hold,),
        )

    def resume(self) -> None:
        self.orders.append("resume")
        self.now = BUSY

    async def order_kept(self) -> str:
        return self.disk_problem

    def finish(self) -> None:
        self.orders.append("finish")

    def leave(self) -> None:
        self.orders.append("leave")

    async def set_limits(self, changes: Mapping[str, str]) -> str:
        if changes.get("work_hours") == "night":
            raise ConfigError(["work_hours: 'night' is no time"])
        if changes.keys() & set(SCHEDULE):
            self.orders.append(f"schedule {dict(changes)}")
            rules = [
                msgspec.structs.replace(each, text=changes.get(each.name, each.text))
                for each in self.now.schedule
            ]
            self.now = msgspec.structs.replace(self.now, schedule=tuple(rules))
            return self.disk_problem
        if "upload" not in changes:
            raise ConfigError(["memory: the run needs 3 GB at least"])
        self.orders.append(f"limits {dict(changes)}")
        return self.disk_problem


class CountedCredit(CreditView):
    """The credit of the members, without headers on a disk."""

    def __init__(self) -> None: ...

    async def answer(self) -> bytes | None:
        members = [
            {"peer_id": PEER, "rank": 1, "tokens": 1_700_000, "share": 0.8, "name": "<i>Ada</i>"},
            {"peer_id": AWAY, "rank": 3, "tokens": 99, "share": 0.0, "name": "Eve", "team": "us"},
            {"peer_id": ME, "rank": 2, "tokens": 430_592, "share": 0.2},
        ]
        return msgspec.json.encode({"round": 40, "tokens_total": 2_130_592, "members": members})


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def address(node: Node) -> Iterator[str]:
    """HOST:PORT of the page of `node`."""
    found: list[str] = []
    is_up, stopping = threading.Event(), trio.Event()
    tokens: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        async with trio.open_nursery() as nursery:

            async def start(task_status: Any) -> None:
                registry = Metrics().registry
                app = build_app(
                    node.status, registry, node, TOKEN,
                    credit=CountedCredit(), samples=lambda: SAMPLES,
                )  # fmt: skip
                await serve_http("127.0.0.1:0", app, task_status=task_status)

            found.append(await nursery.start(start))
            is_up.set()
            await stopping.wait()
            nursery.cancel_scope.cancel()

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    assert is_up.wait(PAGE_SECONDS)
    yield found[0]
    tokens[0].run_sync_soon(stopping.set)
    thread.join()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Debian's Chromium, driven by Selenium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no browser here: apt install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")  # small in containers
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium has none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=driver)
    window = webdriver.Chrome(options=options, service=service)
    yield window
    window.quit()


@pytest.fixture
def window(chromium: Any) -> Iterator[Any]:
    """The browser without what an earlier test left in it: secrets, sizes, colours."""
    chromium.switch_to.new_window("tab")
    # The clipboard is for the tab that has the focus, and a browser without a window has none.
    chromium.execute_cdp_cmd("Emulation.setFocusEmulationEnabled", {"enabled": True})
    chromium.get_log("browser")  # what an earlier page complained of
    yield chromium
    chromium.close()
    chromium.switch_to.window(chromium.window_handles[0])


@pytest.fixture(scope="session")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The source of axe-core."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not here: axe-core cannot be installed")
    folder = tmp_path_factory.mktemp("axe")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=INSTALL_SECONDS,
    )  # fmt: skip
    if done.returncode and "network" in done.stderr:
        pytest.skip("npm reaches no registry: axe-core cannot be installed")
    assert done.returncode == 0, done.stderr
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


Looks = Callable[[int, str], None]


@pytest.fixture
def looks(window: Any) -> Looks:
    """Sets the width of the page in pixels and the colours that its reader prefers."""

    def look(width: int, colours: str) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": colours}]
        window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    return look
