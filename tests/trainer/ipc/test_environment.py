"""The environment of processes that compute."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.trainer.ipc.environment import (
    CARD_ORDER,
    THREADS,
    WAIT_POLICY,
    computing_environment,
)


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
    ("limit", "threads"),
    [("250000 100000", "2"), ("50000 100000", "1"), ("900000 100000", None), ("max 100000", None)],
)
def test_a_container_has_no_more_threads_than_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, threads: str | None
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text(f"{limit}\n")
    assert computing_environment(tmp_path).get(THREADS) == threads
    assert THREADS not in computing_environment(tmp_path / "none")


@pytest.mark.parametrize(
    ("name", "value"), [(WAIT_POLICY, "ACTIVE"), (CARD_ORDER, "FASTEST_FIRST")]
)
def test_what_the_owner_has_set_stays(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert computing_environment()[name] == value
