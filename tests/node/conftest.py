"""What the tests of the node say of this machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gossamer.node.machine import capacity


@pytest.fixture(autouse=True)
def _torch_can_use_simulated_cards() -> Iterator[None]:
    """Simulated cards of NVIDIA count, although tests run with a torch for the CPU.

    It has a patch of its own. The tests' `monkeypatch` would be undone after their folders are
    removed, and some tests replace the calls that remove them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capacity, "torch_has_cuda", lambda: True)
        yield
