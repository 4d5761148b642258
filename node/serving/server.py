"""`gossamer serve` as a whole: the state, its model, and the HTTP server in front of it."""

from __future__ import annotations

import ipaddress
import signal
import socket
import sys

import trio

from gossamer.node.app.http.http_server import bind_address, serve_app
from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.base.terminal.interrupting import only_error
from gossamer.node.base.terminal.printable import printable
from gossamer.node.runs.results.generating import GenerateError, problem_of_device
from gossamer.node.runs.results.reading import read_state, warn_if_older
from gossamer.node.serving.app import build_app
from gossamer.node.serving.model import RefusedError, ServedModel
from gossamer.protocol.ids import short


def serve_model(
    settings: Settings, bind: str, device: str, round_number: int | None, *, follow: bool
) -> int:
    """Serves until SIGINT or SIGTERM, and returns the exit status.

    Args:
        bind: HOST:PORT; port 0 picks a free one.
        round_number: after which the state is; None: the newest.

    Raises:
        ConfigError: an option is not allowed.
        ApiBindError: the address cannot be used.
        StateDirError: there is no run, no such round, or the disk has too little to rebuild it.
        GenerateError: the model cannot be run.
    """
    if problem := problem_of_device(device):
        raise ConfigError([problem])
    with bind_address("--bind", bind) as listener:
        state = read_state(settings, round_number)
        warn_if_older(state)
        model = ServedModel(settings, state, device)
        del state  # its parameters are in the model's memory
        try:
            trio.run(_serve, model, listener, settings.api_hosts, follow)
        except ExceptionGroup as group:
            error = only_error(group)
            if not isinstance(error, RefusedError):
                raise
            raise GenerateError(str(error)) from group
    return 0


async def _serve(
    model: ServedModel, listener: socket.socket, hosts: tuple[str, ...], follow: bool
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_cancel_on_signal, nursery.cancel_scope)
        await nursery.start(lambda task_status: model.run(follow=follow, task_status=task_status))
        address = await nursery.start(
            lambda task_status: serve_app(
                build_app(model, hosts), listener, read_seconds=None, task_status=task_status
            )
        )
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            print(
                f"everybody who reaches {address} can use this model: there are no accounts",
                file=sys.stderr,
            )
        print(
            f"http://{address}/v1 serves {printable(model.manifest.name)}, round "
            f"{model.entry.round}, state {short(model.entry.state_digest)}",
            flush=True,
        )


async def _cancel_on_signal(scope: trio.CancelScope) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return
