"""Bad shards, tokenizers, checkpoints and messages: the trainer refuses them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gossamer.protocol.errors import MalformedError
from gossamer.trainer.checkpoint import (
    CheckpointError,
    load_moments,
    save_moments,
)
from gossamer.trainer.inner_step.optimizer import AdamW
from gossamer.trainer.ipc import messages
from gossamer.trainer.ipc.framing import MessageSplitter, decode_from_worker, decode_to_worker
from gossamer.trainer.ipc.pipe import MessageError
from gossamer.trainer.text.data import DataError, load_shard
from gossamer.trainer.text.tokenizers.tokens import BpeTokenizer
from tests.support.builders import manifest
from tests.support.mutations import anything

TOKENS = np.arange(200, dtype="<u2").tobytes()
SHARDS = [
    zstandard.ZstdCompressor().compress(TOKENS),
    zstandard.ZstdCompressor(write_content_size=False).compress(TOKENS),
    zstandard.ZstdCompressor().compress(bytes(40 * 2**20)),  # a bomb: 1 KiB
]
TOKENIZER = (
    b'{"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":'
    b'"<|endoftext|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,'
    b'"special":true}],"normalizer":null,"pre_tokenizer":null,"post_processor":null,'
    b'"decoder":null,"model":{"type":"BPE","dropout":null,"unk_token":null,'
    b'"continuing_subword_prefix":null,"end_of_word_suffix":null,"fuse_unk":false,'
    b'"byte_fallback":false,"ignore_merges":false,"vocab":{"<|endoftext|>":0,"a":1,"b":2},'
    b'"merges":[]}}'
)
STEP = msgspec.msgpack.encode(
    messages.Step(
        round=1,
        step=2,
        loss=1.5,
        tokens=64,
        seconds=0.1,
        gradient_norm=1.0,
        learning_rate=1e-3,
        skipped=False,
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@given(data=anything(SHARDS, is_msgpack=False), token_bytes=st.sampled_from((2, 4)))
def test_shards(folder: Path, data: bytes, token_bytes: int) -> None:
    path = folder / "shard"
    path.write_bytes(data)
    try:
        tokens = load_shard(path, token_bytes, 256)
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017  (what is caught is the point of the test)
    else:
        assert tokens.nbytes <= 64 * 2**20


def test_the_tokenizer_of_these_tests_is_one() -> None:
    assert BpeTokenizer(TOKENIZER).vocabulary == 3


@given(data=anything([TOKENIZER], is_msgpack=False))
def test_tokenizers(data: bytes) -> None:
    try:
        BpeTokenizer(data)
    except MalformedError as error:
        assert "tokenizer" in str(error)  # noqa: PT017


@pytest.mark.parametrize("decode", [decode_to_worker, decode_from_worker])
@given(data=anything([STEP]))
def test_messages(decode: object, data: bytes) -> None:
    try:
        decode(data)  # type: ignore[operator]
    except MessageError as error:
        assert str(error)  # noqa: PT017


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_the_pipe(pieces: list[bytes]) -> None:
    splitter = MessageSplitter()
    try:
        for piece in pieces:
            splitter.feed(piece)
    except MessageError as error:
        assert str(error)  # noqa: PT017


def _optimizer() -> AdamW:
    return AdamW([nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(4))], manifest().inner)


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> bytes:
    path = folder / "good"
    save_moments(_optimizer(), manifest().model, path)
    return path.read_bytes()


@given(data=st.data())
def test_the_optimizers_checkpoint(folder: Path, checkpoint: bytes, data: st.DataObject) -> None:
    model, optimizer = manifest().model, _optimizer()
    path = folder / "optimizer"
    content = data.draw(anything([checkpoint], is_msgpack=False))
    if data.draw(st.booleans()):
        # As long as it was: the header's length stays true.
        digits = data.draw(st.sampled_from((b"-1", b"1e5", b"9" * 400)))
        content = checkpoint.replace(b'"steps":"0"', b'"steps":"' + digits + b'"')
        more = len(content) - len(checkpoint)
        assert more
        length = int.from_bytes(checkpoint[:8], "little") + more
        content = length.to_bytes(8, "little") + content[8:]
    path.write_bytes(content)
    try:
        load_moments(optimizer, model, path)
    except CheckpointError as error:
        assert str(path) in str(error)  # noqa: PT017
