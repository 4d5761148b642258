"""The ports that tests choose beforehand stay theirs."""

from __future__ import annotations

import socket

import pytest

from tests.support import ports
from tests.support.ports import first_ephemeral_port, free_ports


def test_a_chosen_port_is_none_that_the_system_hands_out() -> None:
    found = free_ports(20)
    assert len(set(found)) == 20
    assert all(port < first_ephemeral_port() for port in found)


def test_a_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "FIRST_PORT", port)
        monkeypatch.setattr(ports, "first_ephemeral_port", lambda: port + 1)
        with pytest.raises(RuntimeError, match="no free ports"):
            free_ports(1)
