"""The memory of right signatures says what OpenSSL says."""

from __future__ import annotations

import pytest

from gossamer.node.network.identity import Identity, verify
from gossamer.protocol.ids import digest_of
from tests.support import signatures_once
from tests.support.signatures_once import signatures_checked_once

ONE, OTHER = (Identity.from_seed(digest_of(name)) for name in (b"one", b"other"))


def test_a_right_signature_is_checked_once_and_a_wrong_one_each_time() -> None:
    signature = ONE.sign(b"said")
    with signatures_checked_once():
        assert [verify(ONE.peer_id, b"said", signature) for _ in range(3)] == [True] * 3
        assert signatures_once._check.cache_info().misses == 1
        for peer, data in ((ONE.peer_id, b"else"), (OTHER.peer_id, b"said")):
            assert not verify(peer, data, signature)
            assert not verify(peer, data, signature)
        assert not verify(ONE.peer_id, b"said", OTHER.sign(b"said"))
        assert not verify(ONE.peer_id, b"said", signature[:-1])
        assert signatures_once._check.cache_info().misses == 6


def test_nothing_is_remembered_after_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    signature = ONE.sign(b"said")
    with signatures_checked_once():
        assert verify(ONE.peer_id, b"said", signature)
    assert signatures_once._check.cache_info().currsize == 0
    monkeypatch.setattr(signatures_once, "_check", None)
    assert verify(ONE.peer_id, b"said", signature)


def test_what_was_signed_in_the_block_is_right_for_its_key_and_its_data_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bytes] = []
    ask = signatures_once._ask

    def note(raw_key: bytes, signature: bytes, data: bytes) -> None:
        asked.append(data)
        ask(raw_key, signature, data)

    monkeypatch.setattr(signatures_once, "_ask", note)
    with signatures_checked_once():
        signature = ONE.sign(b"said")
        assert verify(ONE.peer_id, b"said", signature)
        assert not asked
        assert not verify(OTHER.peer_id, b"said", signature)
        assert not verify(ONE.peer_id, b"else", signature)
        assert not verify(ONE.peer_id, b"said", bytes(64))
        assert asked == [b"said", b"else", b"said"]
    assert not signatures_once._made
