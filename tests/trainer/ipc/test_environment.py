"""The environment of processes that compute."""

from __future__ import annotations

import pytest

from gossamer.trainer.ipc.environment import CARD_ORDER, WAIT_POLICY, computing_environment


def test_threads_that_wait_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT_POLICY)
    monkeypatch.setenv("GOSSAMER_TEST", "kept")
    environment = computing_environment()
    assert environment[WAIT_POLICY] == "PASSIVE"
    assert environment["GOSSAMER_TEST"] == "kept"


def test_cards_are_counted_as_the_driver_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CARD_ORDER, raising=False)
    assert computing_environment()[CARD_ORDER] == "PCI_BUS_ID"


@pytest.mark.parametrize(
    ("name", "value"), [(WAIT_POLICY, "ACTIVE"), (CARD_ORDER, "FASTEST_FIRST")]
)
def test_what_the_owner_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert computing_environment()[name] == value
