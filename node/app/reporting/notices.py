"""Notices to the node's owner: it failed, it was put out, the disk takes nothing, the run is
finished.

Each goes to the desktop (`notify-send`) or to a webhook, as the setting `notices` says. A webhook
gets one POST with a JSON object: `event`, `text`, `content` (the same text: chat programs take one
of these two), `run`, `peer` and `round`. Redirections are not followed, since the owner named the
place.

A notice is sent when its cause begins. It is lost if nobody takes it in `ATTEMPTS_MAX` attempts.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from http.client import HTTPException
from typing import Literal, NamedTuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec
import structlog
import trio

from gossamer.node.app.reporting.reached import finish_line
from gossamer.node.base.disk_health import DiskHealth, write_atomically
from gossamer.node.base.settings.setting_values import DESKTOP
from gossamer.node.base.threads import run_abandonable
from gossamer.node.rounds.participant import Participant
from gossamer.node.storage.state_dir import StateDir

Event = Literal["failed", "put_out", "disk", "finished"]

LOOK_SECONDS = 5.0
"""Time between two looks at the node."""

QUIET_SECONDS = 3600.0
"""Least time between two notices of one event: a disk at its limit is full again and again."""

SEND_SECONDS_MAX = 10.0
"""Limit of one attempt, from the connection to the answer."""

WAITS_SECONDS = (5.0, 30.0, 300.0)
"""Waits between the attempts: for a line that broke, a server that starts, a router that does."""

ATTEMPTS_MAX = len(WAITS_SECONDS) + 1
"""Attempts of a notice to each place."""

FAREWELL_SECONDS_MAX = 15.0
"""Time that a node which leaves gives to its last notices: that of two attempts."""

_AGAIN = (408, 429)
"""Refusals by a client error (4xx) that a later attempt may not get."""

log = structlog.get_logger("node")


class Notice(NamedTuple):
    """One word to the owner."""

    event: Event
    text: str
    run: str
    peer: str
    round: int


class NotTakenError(Exception):
    """The place of a notice did not take it. `is_lasting`: another attempt would be refused too."""

    def __init__(self, text: str, *, is_lasting: bool) -> None:
        super().__init__(text)
        self.is_lasting = is_lasting


class Begun:
    """Says which causes have begun since the last look."""

    def __init__(self) -> None:
        self._holding: set[Event] = set()
        self._told_seconds: dict[Event, float] = {}

    def look(self, holding: Mapping[Event, str], now: float) -> list[Event]:
        """Returns the events that the owner is to be told.

        Args:
            holding: the causes that hold now.
            now: seconds of a clock that only goes forward.
        """
        told: list[Event] = []
        for event in holding:
            quiet_until = self._told_seconds.get(event, -QUIET_SECONDS) + QUIET_SECONDS
            if event not in self._holding and now >= quiet_until:
                told.append(event)
                self._told_seconds[event] = now
        self._holding = set(holding)
        return told


class Notices:
    """Watches a node and tells its owner."""

    def __init__(
        self,
        places: Sequence[str],
        participant: Participant,
        state_dir: StateDir,
        put_out: Callable[[], str | None] = lambda: None,
    ) -> None:
        """
        Args:
            places: `desktop`, or the address of a webhook.
            put_out: says why the members do not take this node for one; None if they do.
        """
        self._places = tuple(places)
        self._participant = participant
        self._state_dir = state_dir
        self._put_out = put_out
        self._begun = Begun()
        self._is_end_told = False
        """Whether the owner was told that the run is finished, in this life or an earlier one."""
        self._is_end_unmarked = False
        """Whether the disk has yet to be told that the owner was."""
        self._undelivered: list[tuple[str, Notice]] = []
        """At most four events to each place: `QUIET_SECONDS` is longer than all attempts."""

    async def run(self) -> None:
        """Runs until cancelled, and then gives the last notices `FAREWELL_SECONDS_MAX`."""
        if not self._places:
            return
        self._is_end_told = await run_abandonable(self._was_end_told)
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    new = self._look()
                    for one in new:
                        nursery.start_soon(self._deliver, *one)
                    if any(notice.event == "finished" for _, notice in new):
                        nursery.start_soon(self._mark_end)
                    await trio.sleep(LOOK_SECONDS)
        finally:
            # A node that serves no finished run leaves as soon as it is finished.
            with trio.CancelScope(shield=True), trio.move_on_after(FAREWELL_SECONDS_MAX):
                self._look()
                async with trio.open_nursery() as nursery:
                    for one in list(self._undelivered):
                        nursery.start_soon(self._deliver, *one)
                    nursery.start_soon(self._mark_end)

    def _look(self) -> list[tuple[str, Notice]]:
        holding = conditions(self._participant, self._state_dir.health, self._put_out())
        context = self._participant.context
        new: list[tuple[str, Notice]] = []
        for event in self._begun.look(holding, trio.current_time()):
            if event == "finished":
                if self._is_end_told:
                    continue
                self._is_end_told = self._is_end_unmarked = True
            notice = Notice(
                event,
                f"Gossamer: {holding[event]}",
                self._run_id,
                context.identity.peer_id,
                context.committed.entry.round,
            )
            new += [(place, notice) for place in self._places]
        self._undelivered += new
        return new

    @property
    def _run_id(self) -> str:
        return self._participant.context.manifest.run_id.hex()

    def _was_end_told(self) -> bool:
        """Returns whether the owner was told of the run's end in an earlier life. Blocks."""
        try:
            text = self._state_dir.noticed_path.read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return text.strip() == self._run_id

    async def _mark_end(self) -> None:
        """Notes on the disk that the owner was told. A disk that hangs holds up nothing else."""
        if not self._is_end_unmarked:
            return
        path, line = self._state_dir.noticed_path, f"{self._run_id}\n".encode()
        with self._state_dir.health.writing("noticed"):
            await run_abandonable(lambda: write_atomically(path, line))
        self._is_end_unmarked = False

    async def _deliver(self, place: str, notice: Notice) -> None:
        for wait in (*WAITS_SECONDS, None):
            if await self._attempt(place, notice) or wait is None:
                break
            await trio.sleep(wait)
        if (place, notice) in self._undelivered:
            self._undelivered.remove((place, notice))

    async def _attempt(self, place: str, notice: Notice) -> bool:
        """Returns whether the notice is done with: it was taken, or will never be."""
        problem, is_lasting = "it does not answer", False
        with trio.move_on_after(SEND_SECONDS_MAX):
            try:
                await run_abandonable(lambda: send_notice(place, notice))
                self._undelivered.remove((place, notice))
                log.debug("a notice is delivered", event_of_node=notice.event)
                return True
            except NotTakenError as error:
                problem, is_lasting = str(error), error.is_lasting
        log.warning(
            "a notice was not delivered",
            notice=notice.event,
            place=name_of(place),
            problem=problem,
            again=not is_lasting,
        )
        return is_lasting


def conditions(
    participant: Participant, health: DiskHealth, put_out: str | None = None
) -> dict[Event, str]:
    """Returns the causes of a notice that hold now, each with a sentence."""
    progress, name = participant.progress, participant.context.manifest.name
    holding: dict[Event, str] = {}
    if progress.phase == "failed":
        holding["failed"] = f"the node of the run {name} has failed: {progress.problem}"
    if put_out is not None:
        holding["put_out"] = f"the node of the run {name} trains for nothing: {put_out}"
    if health.problem is not None or progress.paused_reason == "disk":
        holding["disk"] = f"the node of the run {name} {_disk_problem(participant, health)}"
    if participant.is_finished:
        holding["finished"] = finish_line(participant)
    return holding


def _disk_problem(participant: Participant, health: DiskHealth) -> str:
    """Returns what is the matter with the disk: it takes nothing, or its owner's limit is too
    low."""
    reasons = [hold.text for hold in participant.holds if hold.reason == "disk" and hold.text]
    if health.problem is None and reasons:
        return f"does not train: {reasons[0]}"
    return f"cannot write: {health.problem or 'the disk takes nothing'}"


def name_of(place: str) -> str:
    """Returns a place without what may be secret in it."""
    return urlsplit(place).hostname or place


def send_notice(place: str, notice: Notice) -> None:
    """Takes a notice to its place. It blocks. Raises NotTakenError."""
    if place == DESKTOP:
        _show_on_desktop(notice)
    else:
        _post(place, notice)


def _show_on_desktop(notice: Notice) -> None:
    program = shutil.which("notify-send")
    if program is None:
        raise NotTakenError(
            "notify-send is not installed (Debian: apt install libnotify-bin)", is_lasting=True
        )
    urgency = "normal" if notice.event == "finished" else "critical"
    command = [program, "--app-name=Gossamer", f"--urgency={urgency}", "--", "Gossamer"]
    try:
        done = subprocess.run(
            [*command, notice.text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SEND_SECONDS_MAX,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotTakenError(str(error), is_lasting=False) from error
    if done.returncode:
        raise NotTakenError(done.stderr.strip() or "notify-send failed", is_lasting=False)


class _NoRedirections(HTTPRedirectHandler):
    """Takes a redirection for an answer like others."""

    def redirect_request(self, *_request: object) -> None:
        return None


_OPENER = build_opener(ProxyHandler({}), _NoRedirections)


def _post(place: str, notice: Notice) -> None:
    body = msgspec.json.encode({**notice._asdict(), "content": notice.text})
    headers = {"Content-Type": "application/json", "User-Agent": "Gossamer"}
    try:
        with _OPENER.open(Request(place, body, headers), timeout=SEND_SECONDS_MAX):
            pass  # the rest of the answer is not read
    except HTTPError as error:
        error.close()
        is_lasting = error.code < 500 and error.code not in _AGAIN
        raise NotTakenError(f"it answered {error.code}", is_lasting=is_lasting) from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise NotTakenError(str(reason) or repr(reason), is_lasting=False) from error
    except ValueError as error:  # UnicodeError: no name of a host
        raise NotTakenError(str(error), is_lasting=True) from error
