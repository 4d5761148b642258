"""Ctrl-C during a command that waits for the network."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
import trio

from gossamer.node.base.terminal.interrupting import run_interruptibly


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Has Ctrl-C raise KeyboardInterrupt: it is ignored where a shell runs tests in the
    background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_does_not_tear_another_task_and_reaches_the_one_that_waits() -> None:
    seen: list[str] = []

    async def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        seen.append("the task goes on")

    async def wait() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupted)
            try:
                await trio.sleep_forever()
            except KeyboardInterrupt:
                seen.append("the waiting one is told")
                raise

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(wait)
    assert seen == ["the task goes on", "the waiting one is told"]


def test_results_and_errors_come_out_as_they_are() -> None:
    async def seven() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    async def fail() -> None:
        async with trio.open_nursery():
            raise ValueError("of the function")

    assert run_interruptibly(seven) == 7
    with pytest.raises(ExceptionGroup) as caught:
        run_interruptibly(fail)
    assert caught.group_contains(ValueError, match="of the function")
