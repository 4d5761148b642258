"""Vectors that move between the host and a device in pieces. On a card: `on_card`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gossamer.trainer.resources.transfer import Transfer

PIECE = 10


@pytest.fixture
def transfer() -> Transfer:
    return Transfer(torch.device("cpu"), PIECE)


@pytest.mark.parametrize("length", [0, 1, PIECE, 2 * PIECE, 35])
def test_a_vector_arrives_whole(transfer: Transfer, length: int) -> None:
    vector = np.arange(length, dtype=np.float32)
    flat = torch.full((length,), -1.0)
    transfer.load(flat, vector)
    assert flat.tolist() == vector.tolist()
    back = torch.full((length,), -1.0)
    transfer.receive(flat, lambda place, values: back[place].copy_(values))
    assert back.tolist() == vector.tolist()


def test_what_is_sent_is_computed_on_the_host_and_used_on_the_device(transfer: Transfer) -> None:
    one, other = torch.arange(35.0), torch.full((35,), 2.0)
    flat = torch.ones(35)
    transfer.send(
        flat,
        lambda place, buffer: torch.sub(one[place], other[place], out=buffer),
        lambda part, values: part.add_(values, alpha=0.5),
    )
    torch.testing.assert_close(flat, 1 + 0.5 * (one - other))


def test_the_vector_that_was_loaded_may_change_at_once(transfer: Transfer) -> None:
    vector = np.ones(35, np.float32)
    flat = torch.empty(35)
    transfer.load(flat, vector)
    vector[:] = 7
    assert flat.eq(1).all()
