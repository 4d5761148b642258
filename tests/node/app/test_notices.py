"""Notices to the owner: when, to whom, how often."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import structlog.testing
import trio
import trio.testing

from gossamer.node.app.reporting import notices
from gossamer.node.app.reporting.notices import (
    ATTEMPTS_MAX,
    QUIET_SECONDS,
    Begun,
    Notice,
    Notices,
    NotTakenError,
    conditions,
    send_notice,
)
from gossamer.node.base.disk_health import DiskError, write_atomically
from gossamer.node.base.pausing import Hold
from gossamer.node.base.settings.settings import ConfigError, load_settings
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.state_dir import StateDir
from gossamer.node.telemetry.loss_history import Heldout
from gossamer.node.telemetry.progress import Progress
from tests.support.webhook import hook

NOTICE = Notice("failed", 'Gossamer: it "failed"', "ab" * 32, "12D3KooW", 7)


def test_a_webhook_gets_a_json_object() -> None:
    with hook(204) as one:
        send_notice(one.url, NOTICE)
    assert one.bodies == [
        {
            "event": "failed",
            "text": 'Gossamer: it "failed"',
            "content": 'Gossamer: it "failed"',
            "run": "ab" * 32,
            "peer": "12D3KooW",
            "round": 7,
        }
    ]


@pytest.mark.parametrize(
    ("answer", "is_lasting"), [(500, False), (503, False), (429, False), (404, True), (302, True)]
)
def test_a_refusal_says_whether_another_attempt_helps(answer: int, is_lasting: bool) -> None:
    with hook(answer) as one, pytest.raises(NotTakenError, match=f"it answered {answer}") as caught:
        send_notice(one.url, NOTICE)
    assert caught.value.is_lasting == is_lasting
    assert len(one.bodies) == 1  # a redirection is not followed


def test_nobody_listens() -> None:
    with hook(200) as one:
        pass
    with pytest.raises(NotTakenError, match="refused") as caught:
        send_notice(one.url, NOTICE)
    assert not caught.value.is_lasting


@pytest.mark.parametrize("host", ["chat..example.org", f"{'a' * 64}.example.org"])
def test_an_address_that_no_name_server_can_be_asked_for_is_a_lasting_refusal(host: str) -> None:
    with pytest.raises(NotTakenError) as caught:
        send_notice(f"http://{host}/hook", NOTICE)
    assert caught.value.is_lasting


def test_an_ipv6_address_needs_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    def refuse(address: tuple[str, int], *_arguments: object, **_options: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("socket.create_connection", refuse)
    for place in ("http://[2001:db8::1]/hook", "https://[2001:db8::c]/hook"):
        with pytest.raises(NotTakenError, match="refused"):
            send_notice(place, NOTICE)
    assert asked == [("2001:db8::1", 80), ("2001:db8::c", 443)]


def test_a_desktop_shows_the_text_whatever_it_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotTakenError, match="not installed") as caught:
        send_notice("desktop", NOTICE)
    assert caught.value.is_lasting
    program = tmp_path / "notify-send"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {tmp_path}/shown\n')
    program.chmod(0o755)
    send_notice("desktop", NOTICE._replace(text="--icon=/etc/passwd"))
    shown = (tmp_path / "shown").read_text()
    assert shown.endswith("|--urgency=critical|--|Gossamer|--icon=/etc/passwd|")
    program.write_text("#!/bin/sh\necho no display >&2\nexit 1\n")
    with pytest.raises(NotTakenError, match="no display"):
        send_notice("desktop", NOTICE)


def test_an_event_is_told_when_it_begins_and_not_too_often() -> None:
    begun = Begun()
    assert begun.look({}, 0) == []
    assert begun.look({"disk": "x"}, 5) == ["disk"]
    assert begun.look({"disk": "x"}, 10) == []
    assert begun.look({"disk": "x", "failed": "y"}, 15) == ["failed"]
    assert begun.look({}, 20) == []
    assert begun.look({"disk": "x"}, 25) == []  # again, and too soon
    assert begun.look({}, 30) == []
    assert begun.look({"disk": "x"}, 5 + QUIET_SECONDS) == ["disk"]


class Node:
    """A participant as `Notices` sees it."""

    def __init__(self, root: Path) -> None:
        self.state_dir = StateDir(root)
        self.progress = Progress(
            phase="training",
            heldout=Heldout(7, 1.25),
        )
        self.context = SimpleNamespace(
            manifest=SimpleNamespace(name="kitchen\x1b[2J", run_id=bytes(32)),
            identity=SimpleNamespace(peer_id="12D3KooW"),
            committed=SimpleNamespace(entry=SimpleNamespace(round=7, tokens_total=900)),
            work=SimpleNamespace(status=SimpleNamespace(committed_on_time=5, committed_late=6)),
        )
        self.context.progress = self.progress
        self.is_finished = False
        self.holds: tuple[Hold, ...] = ()
        self.sent: list[tuple[str, str]] = []
        self.refuses: list[NotTakenError] = []

    def send(self, place: str, notice: Notice) -> None:
        self.sent.append((place, notice.event))
        if self.refuses:
            raise self.refuses.pop(0)

    def notices(self, *places: str) -> Notices:
        return Notices(places or ("desktop",), cast(Participant, self), self.state_dir)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    node = Node(tmp_path)
    monkeypatch.setattr(notices, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(notices, "WAITS_SECONDS", (0.0, 0.0, 0.0))
    monkeypatch.setattr(notices, "send_notice", node.send)
    return node


async def until_sent(node: Node, number: int) -> None:
    with trio.fail_after(20):
        while len(node.sent) < number:  # noqa: ASYNC110 (a thread sends)
            await trio.sleep(0.01)
    await trio.sleep(0.05)  # five more looks


def run_with(node: Node, watch: Notices, number: int) -> None:
    """Runs the watch until so many attempts were made and some looks more."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch.run)
            await until_sent(node, number)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_each_place_is_told_of_each_event(node: Node) -> None:
    node.progress.phase, node.progress.problem = "failed", "no device"
    node.state_dir.health.failed("chain", DiskError("the disk is full"))
    run_with(node, node.notices("desktop", "https://example.org/x"), 4)
    assert sorted(node.sent) == [
        ("desktop", "disk"),
        ("desktop", "failed"),
        ("https://example.org/x", "disk"),
        ("https://example.org/x", "failed"),
    ]


@pytest.mark.parametrize(("refusals", "attempts"), [(0, 1), (2, 3), (9, ATTEMPTS_MAX)])
def test_a_notice_is_tried_a_named_number_of_times(
    node: Node, refusals: int, attempts: int
) -> None:
    node.progress.phase = "failed"
    node.refuses = [NotTakenError("503", is_lasting=False)] * refusals
    run_with(node, node.notices(), attempts)
    assert len(node.sent) == attempts


def test_a_lasting_refusal_ends_the_attempts(node: Node) -> None:
    node.progress.phase = "failed"
    node.refuses = [NotTakenError("404", is_lasting=True)] * 9
    run_with(node, node.notices(), 1)
    assert len(node.sent) == 1


def test_the_log_does_not_have_what_is_secret_in_a_place(node: Node) -> None:
    """Who knows the topic of a webhook may read and write there."""
    node.progress.phase = "failed"
    node.refuses = [NotTakenError("404", is_lasting=True)]
    with structlog.testing.capture_logs() as logs:
        run_with(node, node.notices("https://ntfy.example.org/my-secret?token=my-secret"), 1)
    (warning,) = (line for line in logs if line["event"] == "a notice was not delivered")
    assert warning["place"] == "ntfy.example.org"
    assert "my-secret" not in str(logs)


def test_the_end_of_a_run_is_told_once_in_all_lives(node: Node) -> None:
    node.is_finished = True
    run_with(node, node.notices(), 1)
    assert node.sent == [("desktop", "finished")]
    node.sent.clear()
    run_with(node, node.notices(), 0)
    assert node.sent == []
    assert node.state_dir.noticed_path.exists()


def test_a_slow_disk_holds_up_neither_the_loop_nor_the_notice(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sent = threading.Event()
    sent_meanwhile: list[bool] = []

    def write(path: Path, *parts: bytes) -> None:
        sent_meanwhile.append(is_sent.wait(5))
        write_atomically(path, *parts)

    def send(_place: str, _notice: Notice) -> None:
        is_sent.set()

    monkeypatch.setattr(notices, "write_atomically", write)
    monkeypatch.setattr(notices, "send_notice", send)
    node.is_finished = True
    watch = node.notices()

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                while not node.state_dir.noticed_path.exists():  # noqa: ASYNC110 (a thread writes)
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    trio.run(main)
    assert sent_meanwhile == [True]


def test_what_the_disk_did_not_take_is_told_and_the_notice_goes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path, *_parts: bytes) -> None:
        raise DiskError("the disk is full")

    monkeypatch.setattr(notices, "write_atomically", refuse)
    node.is_finished = True
    run_with(node, node.notices(), 1)
    assert ("desktop", "finished") in node.sent
    assert node.state_dir.health.problem_of("noticed") == "the disk is full"


def test_a_node_that_leaves_at_once_still_tells_that_the_run_is_finished(node: Node) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.notices().run)
            await trio.sleep(0.05)
            node.is_finished = True
            nursery.cancel_scope.cancel()  # before the next look

    trio.run(main)
    assert node.sent == [("desktop", "finished")]
    assert node.state_dir.noticed_path.exists()


def test_a_place_that_hangs_does_not_hold_up_the_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "FAREWELL_SECONDS_MAX", 0.2)
    node.progress.phase = "failed"
    hangs = threading.Event()
    tried = threading.Event()

    def send(_place: str, _notice: Notice) -> None:
        tried.set()
        hangs.wait(30)

    monkeypatch.setattr(notices, "send_notice", send)
    watch = node.notices()

    async def main() -> None:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch.run)
                while not tried.is_set():  # noqa: ASYNC110 (a thread sets it)
                    await trio.sleep(0.01)
                nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        hangs.set()


def test_the_owners_own_limit_of_the_disk_is_named(node: Node) -> None:
    node.progress.phase, node.progress.paused_reason = "paused", "disk"
    reason = "the run needs 4 GiB of the disk, and its owner's limit is 2 GiB"
    node.holds = (Hold("schedule"), Hold("disk", reason))
    told = conditions(cast(Participant, node), node.state_dir.health)["disk"]
    assert told.endswith(f"does not train: {reason}")
    node.state_dir.health.failed("chain", DiskError("the disk is full"))
    told = conditions(cast(Participant, node), node.state_dir.health)["disk"]
    assert told.endswith("cannot write: the disk is full")


def test_an_owner_hears_that_the_node_was_put_out(node: Node) -> None:
    participant, health = cast(Participant, node), node.state_dir.health
    assert not conditions(participant, health, None)
    told = conditions(participant, health, "its work counts nowhere")
    assert told["put_out"].endswith("trains for nothing: its work counts nowhere")


def test_without_places_nothing_is_watched(node: Node) -> None:
    watch = Notices((), cast(Participant, node), node.state_dir)
    node.progress.phase = "failed"
    trio.run(watch.run)  # returns at once
    assert node.sent == []


def test_places_of_the_setting() -> None:
    places = ("desktop", "https://ntfy.example.org/topic?x=1", "http://[::1]:8080/hook")
    assert load_settings({"notices": places}, {}).notices == places
    text = " ".join(places)
    assert load_settings({}, {"GOSSAMER_NOTICES": text}).notices == places
    for wrong in (
        "desk",
        "ftp://example.org",
        "https://",
        "https://user:password@example.org",
        "https://example.org:99999/",
        "https://exämple.org/",
        "https://chat..example.org/hook",
        f"https://{'a' * 64}.example.org/hook",
        "https://-/hook",
    ):
        with pytest.raises(ConfigError, match="is no place for notices"):
            load_settings({"notices": (wrong,)}, {})
    with pytest.raises(ConfigError, match="up to 4"):
        load_settings({"notices": ("desktop",) * 5}, {})
