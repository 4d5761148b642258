"""What a test has measured, for people and for `tests.benchmarks.attacks`, which collects it."""

from __future__ import annotations

MARK = "measured: "


def measured(text: str) -> None:
    """Prints one line. pytest shows it with `-s`, or when the test fails."""
    print(f"\n{MARK}{text}")
