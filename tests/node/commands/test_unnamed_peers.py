"""An address without a peer id is taken if a person confirms the peer that answers there."""

from __future__ import annotations

import io
import sys
import threading

import pytest
import trio

from gossamer.node.base.settings import ConfigError
from gossamer.node.commands import unnamed_peers
from gossamer.node.commands.unnamed_peers import answering_peer, confirmed
from gossamer.node.network.identity import Identity
from gossamer.node.network.over_libp2p.host import open_libp2p_transport
from gossamer.node.network.transport import TransportError

ADDRESS = "/ip4/203.0.113.7/tcp/4610"
PEER = "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
WHOLE = f"{ADDRESS}/p2p/{PEER}#{'ab' * 32}"


def _confirm(answer: str, *addresses: str, is_terminal: bool = True) -> tuple[str, ...]:
    questions: list[str] = []

    def ask(question: str) -> str:
        questions.append(question)
        return answer

    found = confirmed(addresses, is_terminal=is_terminal, ask=ask, answering=lambda _: PEER)
    assert all(PEER in question for question in questions)
    return found


def test_a_confirmed_peer_is_named() -> None:
    assert _confirm("y", WHOLE, ADDRESS) == (WHOLE, f"{ADDRESS}/p2p/{PEER}")


@pytest.mark.parametrize("answer", ["", "n", "what?"])
def test_a_peer_that_is_not_confirmed_is_not_joined(answer: str) -> None:
    with pytest.raises(ConfigError, match="not confirmed"):
        _confirm(answer, ADDRESS)


def test_the_end_of_the_input_confirms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-D."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(unnamed_peers, "answering_peer", lambda _address: PEER)
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr(sys, "stdout", Terminal())
    with pytest.raises(ConfigError, match="not confirmed"):
        unnamed_peers.confirm_on_terminal((ADDRESS,))


def test_without_a_terminal_the_whole_link_is_asked_for() -> None:
    with pytest.raises(ConfigError, match="the whole link"):
        _confirm("y", ADDRESS, is_terminal=False)
    assert _confirm("n", WHOLE, is_terminal=False) == (WHOLE,)


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
