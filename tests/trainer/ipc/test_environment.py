"""The environment of processes that compute."""

from __future__ import annotations

import pytest

from gossamer.trainer.ipc.environment import WAIT_POLICY, computing_environment


def test_threads_that_wait_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WAIT_POLICY)
    monkeypatch.setenv("GOSSAMER_TEST", "kept")
    environment = computing_environment()
    assert environment[WAIT_POLICY] == "PASSIVE"
    assert environment["GOSSAMER_TEST"] == "kept"


def test_what_the_owner_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(WAIT_POLICY, "ACTIVE")
    assert computing_environment()[WAIT_POLICY] == "ACTIVE"
