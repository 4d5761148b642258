"""`gossamer serve`."""

from __future__ import annotations

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.commands.options import NO_OPTIONS, RoundNumber, State, reading_settings_of

BIND = "127.0.0.1:4680"
"""Away from the ports of nodes and their pages, which begin at 4610."""


def serve(
    *,
    bind: str = BIND,
    device: str = "cpu",
    round_number: RoundNumber = None,
    follow: bool = False,
    options: State = NO_OPTIONS,
) -> int:
    """Answer programs that speak OpenAI's interface with the model.

    The model is the one on this disk. The interface has /v1/models, /v1/completions and
    /v1/chat/completions. There are no accounts: everybody who reaches the address can use the
    model. The node may run meanwhile. Ctrl-C ends it.

    Parameters
    ----------
    bind
        HOST:PORT to listen on. Port 0 picks a free one.
    device
        Device to compute on: cpu, cuda, cuda:N or mps.
    round_number
        Round after which the state is.
    follow
        Take each new round when it is on the disk. Without that the model stays as it was.
    """
    if follow and round_number is not None:
        raise ConfigError(["--follow takes the newest round, and --round another: give one"])
    # The server brings starlette and trio; a mistake in the options is told before that.
    from gossamer.node.serving.server import serve_model

    settings = reading_settings_of(options)
    return serve_model(settings, bind, device, round_number, follow=follow)
