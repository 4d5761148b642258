"""An address without a peer id is taken if a person confirms the peer that answers there."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import trio

from gossamer.node.base.settings.settings import ConfigError
from gossamer.node.commands import unnamed_peers
from gossamer.node.commands.unnamed_peers import answering_peer, confirm_on_terminal
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import TransportError

ADDRESS = "/ip4/203.0.113.7/tcp/4610"
PEER = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
WHOLE = f"{ADDRESS}/p2p/{PEER}#{'ab' * 32}"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Confirm = Callable[..., tuple[str, ...]]


@pytest.fixture
def confirm(monkeypatch: pytest.MonkeyPatch) -> Confirm:
    """Confirms addresses on a terminal, or on none, where a person types what is given."""
    monkeypatch.setattr(unnamed_peers, "answering_peer", lambda _address: PEER)

    def confirm(typed: str, *addresses: str, terminal: type[io.StringIO] = Terminal) -> Any:
        shown = terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", terminal(typed))
            patch.setattr(sys, "stdout", shown)
            found = confirm_on_terminal(addresses)
        assert not shown.getvalue() or PEER in shown.getvalue()
        return found

    return confirm


def test_a_confirmed_peer_is_named(confirm: Confirm) -> None:
    assert confirm("y\n", WHOLE, ADDRESS) == (WHOLE, f"{ADDRESS}/p2p/{PEER}")


@pytest.mark.parametrize("typed", ["\n", "n\n", "what?\n", ""])
def test_a_peer_that_is_not_confirmed_is_not_joined(confirm: Confirm, typed: str) -> None:
    """The last one is Ctrl-D: the end of the input confirms nothing."""
    with pytest.raises(ConfigError, match="not confirmed"):
        confirm(typed, ADDRESS)


def test_without_a_terminal_the_whole_link_is_asked_for(confirm: Confirm) -> None:
    with pytest.raises(ConfigError, match="the whole link"):
        confirm("y\n", ADDRESS, terminal=io.StringIO)
    assert confirm("n\n", WHOLE, terminal=io.StringIO) == (WHOLE,)


def test_the_peer_that_answers_is_asked_for_its_name() -> None:
    identity, found = Identity.generate(), []

    async def main() -> None:
        async with open_libp2p_transport(identity, ["/ip4/127.0.0.1/tcp/0"]) as transport:
            address = transport.addresses()[0].partition("/p2p/")[0]
            thread = threading.Thread(target=lambda: found.append(answering_peer(address)))
            thread.start()
            while thread.is_alive():  # noqa: ASYNC110 - another thread's end sets no event
                await trio.sleep(0.05)

    trio.run(main)
    assert found == [identity.peer_id]
    with pytest.raises(TransportError):
        answering_peer("/ip4/127.0.0.1/tcp/1")
