"""Two nodes of one network have different ports, and keep them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from gossamer.node.app import listening
from gossamer.node.app.listening import DEFAULT_PORT, listen_addresses, unused_port, with_port
from gossamer.node.base.settings.settings import DEFAULT_LISTEN, Settings
from gossamer.node.network.lan import Neighbour
from tests.support.builders import peers


def neighbours(*ports: int) -> list[Neighbour]:
    """One node for each port."""
    return [
        Neighbour(peer, "ab" * 32, (f"/ip4/192.168.1.{n}/tcp/{port}/p2p/{peer}",))
        for n, (peer, port) in enumerate(zip(peers(len(ports)), ports, strict=True), 1)
    ]


def test_the_first_port_that_no_neighbour_has_is_chosen() -> None:
    assert unused_port([]) == DEFAULT_PORT
    assert unused_port(neighbours(DEFAULT_PORT)) == DEFAULT_PORT + 2
    assert unused_port(neighbours(DEFAULT_PORT + 2, DEFAULT_PORT)) == DEFAULT_PORT + 4
    assert unused_port(neighbours(*listening.PORTS)) == DEFAULT_PORT


def test_a_first_start_looks_around_and_later_ones_keep_their_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    async def look_around(seconds: float) -> list[Neighbour]:
        looks.append(seconds)
        return neighbours(DEFAULT_PORT)

    async def no_network(_seconds: float) -> list[Neighbour]:
        raise OSError(101, "Network is unreachable")

    def chosen(settings: Settings, remembered: int = 0) -> tuple[str, ...]:
        return trio.run(listen_addresses, settings, remembered)

    usual = Settings(state_dir=tmp_path)
    monkeypatch.setattr(listening, "look_around", look_around)
    assert chosen(usual) == with_port(DEFAULT_PORT + 2)
    assert looks == [listening.LOOK_SECONDS]
    assert chosen(usual, 4616) == with_port(4616)
    assert chosen(usual, 51234) == DEFAULT_LISTEN  # a life with a port by hand says nothing here
    assert chosen(Settings(state_dir=tmp_path, lan="off")) == DEFAULT_LISTEN
    own = ("/ip4/127.0.0.1/tcp/0",)
    assert chosen(Settings(state_dir=tmp_path, listen=own)) == own
    assert len(looks) == 1
    monkeypatch.setattr(listening, "look_around", no_network)
    assert chosen(usual) == DEFAULT_LISTEN
