"""The owner's limits of the trainer's process, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from gossamer.trainer.resources import accelerator

HEAD = """
import torch
from gossamer.trainer.resources.device import choose_device, is_out_of_memory, OWNER_LIMITS
from gossamer.trainer.ipc.messages import Limits
device = choose_device("cpu")
def limit(**values):
    OWNER_LIMITS.apply(Limits(**values), device.torch_device)
"""
MB = 1_000_000


def run(story: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", HEAD + story], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_threads_change_at_once_and_go_back() -> None:
    story = """
first = torch.get_num_threads()
limit(threads=1)
assert torch.get_num_threads() == 1
limit()
assert torch.get_num_threads() == first
"""
    run(story)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts the memory of a process")
def test_memory_beyond_the_limit_fails_as_if_the_machine_had_no_more() -> None:
    """The trainer then takes smaller passes, as with a full machine."""
    story = f"""
from pathlib import Path
def resident():
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in x)
    return int(line.split()[1]) * 1024
limit(memory_bytes=resident() + {300 * MB})
kept = torch.ones({200 * MB} // 4)
free = device.free_bytes()
assert 0 <= free <= {150 * MB}, free
try:
    torch.ones({400 * MB} // 4)
except RuntimeError as error:
    assert is_out_of_memory(error), error
else:
    raise SystemExit("the limit does not hold")
limit()
torch.ones({400 * MB} // 4)
print(len(kept))
"""
    assert run(story) == str(200 * MB // 4)


def test_a_torch_that_cannot_bound_the_memory_of_a_card_trains_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch.xpu, "set_per_process_memory_fraction")
    accelerator.limit_memory(torch.device("xpu", 0), 0.5)


@pytest.mark.long
def test_memory_of_a_card_is_bounded_and_told() -> None:
    """The calls of torch that set and read it are simulated: this machine may have no card."""
    story = """
from types import SimpleNamespace
from unittest.mock import patch
GIB = 1024**3
card = torch.device("cuda", 0)
set_to = []
with (
    patch("torch.cuda.get_device_properties", lambda _: SimpleNamespace(total_memory=24 * GIB)),
    patch("torch.cuda.set_per_process_memory_fraction", lambda part, _: set_to.append(part)),
    patch("torch.cuda.memory_allocated", lambda _: 5 * GIB),
):
    OWNER_LIMITS.apply(Limits(gpu_memory_bytes=6 * GIB), card)
    assert OWNER_LIMITS.free_bytes(card, 20 * GIB) == 1 * GIB
    OWNER_LIMITS.apply(Limits(), card)
    assert OWNER_LIMITS.free_bytes(card, 15 * GIB) == 15 * GIB
assert set_to == [0.25, 1.0], set_to
"""
    run(story)
