"""The status page in a browser: it shows, steers with the token alone, and fits its reader."""

from __future__ import annotations

import http.server
import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from gossamer.node.telemetry.logs import configure_logs
from tests.browser.conftest import BUSY, PAGE_SECONDS, TOKEN, Looks, Node
from tests.support.daemons import poll

AXE_SECONDS = 60
WIDTHS = (360, 1200)


def text_of(window: Any, element_id: str) -> str:
    found: str = window.execute_script(
        "return document.getElementById(arguments[0]).textContent", element_id
    )
    return found


def is_hidden(window: Any, element_id: str) -> bool:
    found: bool = window.execute_script(
        "return document.getElementById(arguments[0]).checkVisibility() === false", element_id
    )
    return found


def until(condition: Callable[[], bool], what: str) -> None:
    poll(lambda: condition() or None, what, PAGE_SECONDS)


def opened(window: Any, address: str, token: str = "") -> None:
    """Opens the page, and waits until it shows what the node says."""
    window.get(f"http://{address}/" + (f"#token={token}" if token else ""))
    until(lambda: text_of(window, "version") != "", "the page shows the status")


def complaints(window: Any) -> list[str]:
    """What the browser complains of: script errors, and what the policy of the page forbids."""
    return [entry["message"] for entry in window.get_log("browser") if entry["level"] == "SEVERE"]


def press(window: Any, element_id: str, keys: str) -> None:
    window.find_element("id", element_id).send_keys(keys)


def test_it_only_shows_without_the_token(window: Any, address: str, node: Node) -> None:
    opened(window, address)
    assert text_of(window, "doing") == "Training for round 41 of 100"
    for hidden in ("controls", "log-section"):
        assert is_hidden(window, hidden)
    assert "gossamer page" in text_of(window, "read-only")
    window.execute_script("document.getElementById('pause').click()")
    until(lambda: "token" in text_of(window, "order-result"), "the order is refused")
    assert node.orders == []
    assert not [each for each in complaints(window) if "401" not in each]


def test_pause_and_resume_by_keyboard(window: Any, address: str, node: Node) -> None:
    opened(window, address, TOKEN)
    assert not is_hidden(window, "controls")
    assert TOKEN not in window.current_url
    assert TOKEN not in window.execute_script("return document.documentElement.outerHTML")
    press(window, "pause-length", "2 h")
    press(window, "after-round", " ")
    press(window, "pause", "\ue007")
    until(lambda: node.orders == ["pause 7200 True"], "the node has the order")
    until(lambda: "when its present round ends" in text_of(window, "order-result"), "an answer")
    press(window, "after-round", " ")
    press(window, "pause", "\ue007")
    until(lambda: "The node is paused" in text_of(window, "heard"), "the state is told")
    press(window, "resume", "\ue007")
    until(lambda: "takes part" in text_of(window, "heard"), "the state is told")
    assert node.orders[1:] == ["pause 7200 False", "resume"]
    press(window, "finish", "\ue007")
    until(lambda: node.orders[-1] == "finish", "the node has the order")
    # The focus is where the reader left it, and can be seen.
    assert window.switch_to.active_element.get_attribute("id") == "finish"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert window.execute_script(outline) == "solid"
    window.refresh()
    until(lambda: not is_hidden(window, "controls"), "the tab keeps the token")
    assert complaints(window) == []


def test_an_order_that_a_full_disk_does_not_take_is_told(
    window: Any, address: str, node: Node
) -> None:
    node.disk_problem = "the disk is full"
    opened(window, address, TOKEN)
    press(window, "pause", "\ue007")
    until(lambda: "the disk is full" in text_of(window, "order-result"), "the problem")
    assert "The node obeys, but a restart forgets this order" in text_of(window, "order-result")
    press(window, "finish", "\ue007")
    until(lambda: "is lost here" in text_of(window, "order-result"), "what is lost")
    assert "a restart forgets" not in text_of(window, "order-result")
    press(window, "limit-value", "5")
    press(window, "set-limit", "\ue007")
    until(lambda: "the disk is full" in text_of(window, "limit-result"), "the problem")
    node.disk_problem = ""
    press(window, "set-limit", "\ue007")
    until(lambda: "after a restart" in text_of(window, "limit-result"), "an answer")
    assert "disk" not in text_of(window, "limit-result")
    assert complaints(window) == []


def test_a_token_of_an_earlier_life_is_forgotten(window: Any, address: str, node: Node) -> None:
    opened(window, address, "0" * 64)
    press(window, "pause", "\ue007")
    until(lambda: is_hidden(window, "controls"), "the page shows only")
    assert "token" in text_of(window, "order-result")
    assert node.orders == []
    assert window.execute_script("return sessionStorage.length") == 0


@pytest.fixture
def foreign() -> Iterator[str]:
    """HOST:PORT of a page of another program on this machine."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>foreign</title>")

        def log_message(self, *_arguments: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


SEND = """
const [url, options, done] = arguments;
fetch(url, options).then(a => done("answered " + a.type), e => done("refused"));
"""


def test_another_page_changes_nothing(window: Any, address: str, foreign: str, node: Node) -> None:
    """Even one that has learned the token."""
    window.get(f"http://{foreign}/")
    headers = {"X-Gossamer": "1", "Authorization": f"Bearer {TOKEN}"}
    url = f"http://{address}/api/pause"
    with_token = {"method": "POST", "headers": headers}
    assert window.execute_async_script(SEND, url, with_token) == "refused"
    plain = {"method": "POST", "mode": "no-cors"}
    window.execute_async_script(SEND, url, plain)
    assert node.orders == []
    opened(window, address, TOKEN)
    assert "answered" in window.execute_async_script(SEND, url, with_token)
    assert node.orders == ["pause None False"]  # the same request of the node's own page


def test_link_log_peers_and_curve(window: Any, address: str) -> None:
    allowed = ["clipboardReadWrite", "clipboardSanitizedWrite"]
    grant = {"origin": f"http://{address}", "permissions": allowed}
    window.execute_cdp_cmd("Browser.grantPermissions", grant)
    configure_logs(stream=io.StringIO())
    structlog.get_logger().info("round <i>41</i> committed", peers=3)
    opened(window, address, TOKEN)
    press(window, "copy", "\ue007")
    until(lambda: text_of(window, "copied") != "", "an answer to the button")
    assert text_of(window, "copied") == "Copied."
    paste = "navigator.clipboard.readText().then(arguments[0])"
    copied = window.execute_async_script(paste)
    assert copied == f"gossamer join {BUSY.addresses[0]}#{BUSY.run_id}"
    assert window.execute_script("return document.getElementById('join-code').naturalWidth") > 0

    until(lambda: "431 k (20 %)" in text_of(window, "peers"), "the credit of the members")
    for shown in ("1.70 M (80 %)", "direct", "through …", "<b>Apple M4</b>", "<i>Ada</i>"):
        assert shown in text_of(window, "peers")
    assert "60 rounds, about 12 min" in text_of(window, "swarm-facts")

    window.find_element("css selector", "#log-box summary").send_keys("\ue007")
    until(lambda: "info    round <i>41</i> committed  peers=3" in text_of(window, "log"), "the log")

    press(window, "chart", "\ue011")  # Home
    assert text_of(window, "chart-point") == "round 1: held-out 4.400, training 4.500"
    press(window, "chart", "\ue014")  # right
    assert text_of(window, "chart-point") == "round 2: held-out \u2013, training 3.500"
    value = window.find_element("id", "chart").get_attribute("aria-valuetext")
    assert value == "round 2: held-out \u2013, training 3.500"
    assert complaints(window) == []


def test_limits_beside_their_use(window: Any, address: str, node: Node) -> None:
    opened(window, address)
    shown = text_of(window, "limits")
    assert "upload8.3 of 10 Mbit/s" in shown
    assert "threads0.2 of 1 threadmemory" in shown
    assert "memory2.0 GB, no limit" in shown
    assert "temperature61 of 80 °C (the card does not tell)" in shown
    assert is_hidden(window, "limit-controls")
    node.now = msgspec.structs.replace(BUSY, limits=())
    until(lambda: is_hidden(window, "limits-section"), "no limits")


def test_a_limit_is_set_and_a_refusal_says_why(window: Any, address: str, node: Node) -> None:
    opened(window, address, TOKEN)
    until(lambda: not is_hidden(window, "limit-controls"), "the limits")
    press(window, "set-limit", "\ue007")
    assert text_of(window, "limit-result") == "Write a new value first."
    press(window, "limit-value", "10@18:00-23:00 20\ue007")
    until(lambda: "holds from now on" in text_of(window, "limit-result"), "an answer")
    assert node.orders == ["limits {'upload': '10@18:00-23:00 20'}"]
    press(window, "limit-name", "memory")
    press(window, "set-limit", "\ue007")
    until(lambda: "needs 3 GB" in text_of(window, "limit-result"), "the reason")
    assert len(node.orders) == 1


def test_the_schedule_is_shown_and_changed_as_the_command_does(
    window: Any, address: str, node: Node
) -> None:
    opened(window, address)
    shown = text_of(window, "schedule")
    assert "Hours22:00-07:00 (set here)" in shown
    assert "Idledoes not matter" in shown
    assert "On a metered lineworks" in shown
    assert is_hidden(window, "schedule-form")
    window.get("about:blank")
    opened(window, address, TOKEN)
    hours = window.find_element("id", "rule-work_hours")
    until(lambda: hours.get_attribute("value") == "22:00-07:00", "the field has what holds")
    press(window, "rule-work_hours", "\ue007")
    assert text_of(window, "schedule-result") == "Change something first."
    hours.clear()
    hours.send_keys("night")
    node.now = msgspec.structs.replace(node.now, round=41)
    until(lambda: "42" in text_of(window, "doing"), "a newer status")
    assert hours.get_attribute("value") == "night", "what its owner writes stays in the field"
    press(window, "set-schedule", "\ue007")
    until(lambda: "is no time" in text_of(window, "schedule-result"), "the reason")
    hours.clear()  # no hours: always
    press(window, "rule-on_battery", "w")
    press(window, "set-schedule", "\ue007")
    until(lambda: "holds from now on" in text_of(window, "schedule-result"), "an answer")
    assert node.orders == ["schedule {'work_hours': 'off', 'on_battery': 'on'}"]
    until(lambda: hours.get_attribute("value") == "off", "the field has what holds")
    assert "Hoursalways" in text_of(window, "schedule")
    press(window, "default-schedule", "\ue007")
    until(lambda: len(node.orders) == 2, "the node has the order")
    assert node.orders[1].count("default") == 5
    assert not [each for each in complaints(window) if "400" not in each]


def test_texts_of_the_model_and_names_of_members_that_are_away(window: Any, address: str) -> None:
    opened(window, address)
    until(lambda: "upon <b>40</b> times" in text_of(window, "samples"), "the newest texts")
    assert text_of(window, "samples-round") == "After round 40"
    before = text_of(window, "samples-before")
    assert before.index("After round 20") < before.index("After round 0")
    until(lambda: "Eve (us)" in text_of(window, "members"), "the credit of all members")
    assert complaints(window) == []


def test_a_run_without_end_and_an_old_node_s_status(window: Any, address: str, node: Node) -> None:
    node.now = msgspec.structs.replace(
        BUSY, final_round=None, last_round=None, loss_history=(), peers=(), capacity=None,
        schedule=(), sampled_round=None,
    )  # fmt: skip
    opened(window, address)
    assert "Time left" not in text_of(window, "swarm-facts")
    for hidden in ("chart-box", "schedule-section", "samples-section"):
        assert is_hidden(window, hidden)
    assert complaints(window) == []


def require_accessible(window: Any, axe: str) -> None:
    """Fails with each complaint of axe-core and the elements that it is about."""
    window.set_script_timeout(AXE_SECONDS)
    window.execute_script(axe)
    found = window.execute_async_script("axe.run(document).then(arguments[0])")
    violations = [
        (each["id"], [at["html"] for at in each["nodes"]]) for each in found["violations"]
    ]
    assert violations == [], json.dumps(violations, indent=2)
    assert len(found["passes"]) > 20


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_a_node_that_failed_and_is_gone(
    window: Any, address: str, node: Node, looks: Looks, axe: str, colours: str
) -> None:
    looks(360, colours)
    node.now = msgspec.structs.replace(BUSY, phase="failed", problem="the trainer died five times")
    opened(window, address)
    assert "died five times" in text_of(window, "heard")
    require_accessible(window, axe)
    window.execute_script("window.fetch = () => Promise.reject(new Error('gone'))")
    until(lambda: "does not answer (gone)" in text_of(window, "notice"), "the page says so")
    assert text_of(window, "phase") == "no answer"
    require_accessible(window, axe)


@pytest.mark.parametrize("width", [*WIDTHS, 390, 430])  # the widths of telephones
def test_each_field_of_the_limits_stands_beside_its_label(
    window: Any, address: str, looks: Looks, width: int
) -> None:
    looks(width, "light")
    opened(window, address, TOKEN)
    middles = window.execute_script(
        "return ['limit-name', 'limit-value'].map((id) => "
        "[document.querySelector(`label[for=${id}]`), document.getElementById(id)].map((each) => "
        "{ const box = each.getBoundingClientRect(); return (box.top + box.bottom) / 2; }))"
    )
    for label, field in middles:
        assert label == pytest.approx(field, abs=2.0)


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_and_axe_finds_nothing(
    window: Any, address: str, looks: Looks, axe: str, width: int, colours: str
) -> None:
    """`PAGE_PICTURES` names a folder for pictures of what was checked."""
    looks(width, colours)
    opened(window, address, TOKEN)
    for summary in window.find_elements("css selector", "summary"):
        summary.send_keys("\ue007")
    until(lambda: "431 k" in text_of(window, "peers"), "the credit of the members")
    wide = window.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    require_accessible(window, axe)
    if folder := os.environ.get("PAGE_PICTURES"):
        tall = window.execute_script("return document.documentElement.scrollHeight")
        size = {"width": width, "height": tall, "deviceScaleFactor": 1, "mobile": False}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        Path(folder).mkdir(parents=True, exist_ok=True)
        assert window.save_screenshot(str(Path(folder) / f"page-{width}-{colours}.png"))
