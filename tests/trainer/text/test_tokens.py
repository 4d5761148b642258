from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.protocol import limits
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError
from gossamer.protocol.ids import Digest, digest_of
from gossamer.protocol.shard_index import ShardIndex, ShardInfo
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.text import shards as shards_module
from gossamer.trainer.text.data import load_shard
from gossamer.trainer.text.shards import (
    HELDOUT_BYTES_MAX,
    SHARD_BYTES_MAX,
    default_shard_tokens,
    encode_shard,
    split_documents,
    tokenise,
)
from gossamer.trainer.text.sources.corpus import Corpus, scan_corpus
from gossamer.trainer.text.sources.corpus_errors import CorpusError
from gossamer.trainer.text.sources.corpus_files import default_files
from gossamer.trainer.text.tokenizers import tokens as tokens_module
from gossamer.trainer.text.tokenizers import words as words_module
from gossamer.trainer.text.tokenizers.tokens import (
    END_OF_DOCUMENT,
    BpeTokenizer,
    ByteTokenizer,
    TokenBytes,
    Tokenizer,
    TokenVector,
    learn_bpe,
    load_tokenizer,
)

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


class Store:
    """Blocks in memory and as files, by digest."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_puts = 0

    def put(self, data: bytes) -> Digest:
        self.num_puts += 1
        digest = digest_of(data)
        (self.folder / digest.hex()).write_bytes(data)
        return digest

    def stream(self, infos: tuple[ShardInfo, ...], token_bytes: int, vocabulary: int) -> list[int]:
        """All tokens of some shards, read the way that the trainer reads them."""
        tokens: list[int] = []
        for info in infos:
            path = self.folder / info.digest.hex()
            shard = load_shard(path, token_bytes, vocabulary)
            assert (len(shard), path.stat().st_size) == (info.num_tokens, info.num_bytes)
            tokens += shard.tolist()
        return tokens


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "blocks").mkdir()
    return Store(tmp_path / "blocks")


def corpus_of(folder: Path, texts: list[str], seed: int = 1) -> Corpus:
    files = []
    for number, text in enumerate(texts):
        path = folder / f"{number}.txt"
        path.write_text(text, encoding="utf-8", newline="")
        files.append(path)
    return scan_corpus(files, seed=seed)


@pytest.fixture(scope="module")
def library() -> Corpus:
    """A part of Python's library: some 1 MB."""
    files = [path for path in default_files() if path.parent.name in ("json", "email", "asyncio")]
    return scan_corpus(files, seed=1)


@pytest.fixture(scope="module")
def bpe(library: Corpus) -> BpeTokenizer:
    return learn_bpe(library, split_documents(library).train, 512)


@given(text=TEXT)
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    (tokens,) = tokenizer.encode([text.encode()])
    assert tokens.tolist() == list(text.encode())
    assert tokenizer.decode(tokens) == text


@settings(deadline=None)
@given(texts=st.lists(TEXT, max_size=4))
def test_bpe_round_trip(bpe: BpeTokenizer, texts: list[str]) -> None:
    encoded = bpe.encode([text.encode() for text in texts])
    assert [bpe.decode(tokens) for tokens in encoded] == texts
    assert all(0 < token < bpe.vocabulary for tokens in encoded for token in tokens.tolist())


def test_bpe_learns_and_is_rebuilt_from_its_file(library: Corpus, bpe: BpeTokenizer) -> None:
    text = b"    def __init__(self, message):\n        return None\n"
    again = learn_bpe(library, split_documents(library).train, 512)
    (tokens,) = load_tokenizer("bpe", bpe.file).encode([text])

    assert again.file == bpe.file
    assert bpe.vocabulary == 512
    assert len(tokens) < len(text) / 2
    assert tokens.tolist() == bpe.encode([text])[0].tolist()


def test_a_small_corpus_gives_fewer_merges_than_asked(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ["ab ab ab"])
    tokenizer = learn_bpe(corpus, np.arange(1), 1000)
    assert 257 < tokenizer.vocabulary < 300
    assert tokenizer.decode(tokenizer.encode([b"xyz"])[0]) == "xyz"


def test_text_that_spells_the_end_of_a_document_does_not_end_it(bpe: BpeTokenizer) -> None:
    for tokenizer in (bpe, load_tokenizer("bpe", bpe.file)):
        (tokens,) = tokenizer.encode([b"a<|endoftext|>b"])
        assert END_OF_DOCUMENT not in tokens
        assert tokenizer.decode(tokens) == "a<|endoftext|>b"


def test_a_long_text_is_encoded_in_pieces(
    bpe: BpeTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "_ENCODE_CHARACTERS", 10)
    text = "one line\nand one that is longer than ten\n\nend"
    (tokens,) = bpe.encode([text.encode()])
    assert bpe.decode(tokens) == text


def test_bad_tokenizer_files_are_refused(bpe: BpeTokenizer) -> None:
    other = bpe.file.replace(b"<|endoftext|>", b"<|somethingelse|>")
    for file in (b"", b"{}", b"\xff", other, b"x" * (tokens_module.TOKENIZER_BYTES_MAX + 1)):
        with pytest.raises(MalformedError):
            load_tokenizer("bpe", file)
    with pytest.raises(MalformedError):
        load_tokenizer("bytes", b"something")


def test_a_file_that_changes_while_bpe_learns_is_reported(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ["one text"])
    (tmp_path / "0.txt").write_text("two text")
    with pytest.raises(CorpusError, match="changed while it was read"):
        learn_bpe(corpus, np.arange(1), 300)


CONTEXT = 4
SEQUENCE = CONTEXT + 1


def pack(
    corpus: Corpus, tokenizer: Tokenizer, shard_tokens: int, store: Store, token_bytes: TokenBytes
) -> tuple[list[int], list[int]]:
    """(training stream, held-out stream) after a journey through shards."""
    split = split_documents(corpus)
    index = tokenise(
        corpus,
        split,
        tokenizer,
        token_bytes=token_bytes,
        shard_tokens=shard_tokens,
        context=CONTEXT,
        put=store.put,
    )
    whole_sequences = max(SEQUENCE, shard_tokens // SEQUENCE * SEQUENCE)
    assert all(info.num_tokens == whole_sequences for info in index.shards[:-1])
    assert all(info.num_tokens == shard_tokens for info in index.heldout[:-1])
    train = store.stream(index.shards, token_bytes, tokenizer.vocabulary)
    return train, store.stream(index.heldout, token_bytes, tokenizer.vocabulary)


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(TEXT.filter(bool), min_size=2, max_size=12, unique=True),
    shard_tokens=st.integers(1, 40),
    token_bytes=st.sampled_from([2, 4]),
    batch_bytes=st.integers(1, 50),
    shuffle_bytes=st.integers(1, 1000),
)
def test_shards_are_the_documents_with_the_sequences_to_train_on_shuffled(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[str],
    shard_tokens: int,
    token_bytes: TokenBytes,
    batch_bytes: int,
    shuffle_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    corpus = corpus_of(folder, texts)
    split = split_documents(corpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards_module, "_BATCH_BYTES_A_CORE", batch_bytes)
        patch.setattr(shards_module, "SHUFFLE_BYTES", shuffle_bytes)
        train, heldout = pack(corpus, ByteTokenizer(), shard_tokens, Store(folder), token_bytes)
    train_text, heldout_text = (
        b"".join(text + b"\0" for text in corpus.read(documents)) for documents in split
    )
    assert bytes(heldout) == heldout_text
    assert sorted(sequences_of(bytes(train))) == sorted(sequences_of(train_text))


@pytest.mark.parametrize(("num_cores", "in_a_batch"), [(1, 1), (4, 4), (100, 8)])
def test_every_core_has_a_document_of_a_batch(
    tmp_path: Path,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    num_cores: int,
    in_a_batch: int,
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: num_cores)
    monkeypatch.setattr(shards_module, "_BATCH_BYTES_A_CORE", 1_000)
    monkeypatch.setattr(shards_module, "_BATCH_BYTES_MAX", 8_000)
    batches: list[int] = []

    class Counting(ByteTokenizer):
        def encode(self, texts: Sequence[bytes]) -> list[TokenVector]:
            batches.append(len(texts))
            return super().encode(texts)

    pack(corpus_of(tmp_path, [f"{n:01000}" for n in range(40)]), Counting(), 500, store, 2)

    assert max(batches) == in_a_batch


def test_bpe_shards_decode_to_the_documents(
    library: Corpus, bpe: BpeTokenizer, store: Store
) -> None:
    train, heldout = pack(library, bpe, 4096, store, 2)
    split = split_documents(library)
    assert train.count(END_OF_DOCUMENT) == len(split.train)
    assert heldout.count(END_OF_DOCUMENT) == len(split.heldout)
    text = b"".join(library.read(split.heldout)).decode()
    assert bpe.decode(np.array(heldout, dtype=np.uint16)) == text


def test_the_shuffle_mixes_documents_and_is_the_same_again(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path, ["a" * 5000, "b" * 5000, "c" * 500])
    for name in "xy":
        (tmp_path / name).mkdir()
    first, again = (
        pack(corpus, ByteTokenizer(), 100, Store(tmp_path / name), 2)[0] for name in "xy"
    )
    assert first == again
    starts = bytes(first)[:2000:SEQUENCE]
    assert 100 < starts.count(b"a") < 300


def sequences_of(stream: bytes) -> list[bytes]:
    return [stream[start : start + SEQUENCE] for start in range(0, len(stream), SEQUENCE)]


@given(sizes=st.lists(st.integers(1, 60_000), min_size=2, max_size=60), seed=st.integers(0, 9))
def test_the_split_takes_each_document_once(sizes: list[int], seed: int) -> None:
    corpus = corpus_of_sizes(sizes, seed)
    train, heldout = split_documents(corpus)
    assert sorted([*train.tolist(), *heldout.tolist()]) == list(range(len(sizes)))
    assert len(train) > 0
    assert len(heldout) > 0
    if heldout_bytes := int(corpus.text_bytes[heldout].sum()):
        assert heldout_bytes <= max(0.2 * sum(sizes), min(sizes))


def corpus_of_sizes(sizes: list[int], seed: int) -> Corpus:
    """A corpus of which only the sizes are known."""
    count = len(sizes)
    keys = np.random.default_rng(seed).permutation(count).astype(np.uint64)
    return Corpus(
        files=(Path("nowhere"),),
        seed=seed,
        text_field="text",
        file_numbers=np.zeros(count, np.uint32),
        offsets=np.zeros(count, np.uint64),
        raw_bytes=np.array(sizes, np.uint32),
        text_bytes=np.array(sizes, np.uint32),
        keys=keys,
    )


def test_some_two_percent_are_held_out_up_to_a_bound() -> None:
    medium = corpus_of_sizes([10_000] * 2_000, 1)
    heldout = split_documents(medium).heldout
    assert 0.019 < len(heldout) / 2_000 < 0.021

    large = corpus_of_sizes([1_000_000] * 2_000, 1)
    heldout = split_documents(large).heldout
    assert HELDOUT_BYTES_MAX <= len(heldout) * 1_000_000 < 2 * HELDOUT_BYTES_MAX


def test_copies_of_a_document_count_once_and_never_on_both_sides(tmp_path: Path) -> None:
    texts = [f"document {number % 50}" for number in range(150)]
    corpus = corpus_of(tmp_path, texts)
    train, heldout = (set(corpus.read(documents)) for documents in split_documents(corpus))
    assert not train & heldout
    assert len(train) + len(heldout) == 50
    assert sum(len(documents) for documents in split_documents(corpus)) == 50


def test_order_and_split_follow_the_seed_not_the_files(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(100)]

    def streams(texts: list[str], seed: int) -> list[list[bytes]]:
        corpus = corpus_of(tmp_path, texts, seed)
        return [list(corpus.read(documents)) for documents in split_documents(corpus)]

    first = streams(texts, 1)
    assert streams(texts[::-1], 1) == first
    assert streams(texts, 2) != first
    assert first[0] != [text for text in map(str.encode, texts) if text in first[0]]  # shuffled


def test_max_bytes_takes_a_part_of_the_random_order(library: Corpus) -> None:
    part = np.concatenate(split_documents(library, max_bytes=200_000))
    used = int(library.text_bytes[part].sum())
    order = np.argsort(library.keys)[: len(part)]
    assert 100_000 < used <= 200_000
    assert sorted(part.tolist()) == sorted(order.tolist())
    with pytest.raises(CorpusError, match="within 10 bytes; it needs two or more"):
        split_documents(library, max_bytes=10)


def test_a_corpus_of_one_document_is_too_small(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="only 5 bytes in 1 different documents"):
        split_documents(corpus_of(tmp_path, ["alone"]))


@given(
    num_tokens=st.integers(1, 2**40),
    token_bytes=st.sampled_from([2, 4]),
    context=st.integers(8, 4096),
)
def test_default_shards_are_fine_grained_and_fit_a_block(
    num_tokens: int, token_bytes: TokenBytes, context: int
) -> None:
    size = default_shard_tokens(num_tokens, token_bytes, context)
    assert size * token_bytes <= SHARD_BYTES_MAX
    assert size >= 8 * context
    if 2**18 <= num_tokens <= 2**28 and context <= 512:
        assert 64 <= num_tokens / size <= 4096
    if 64 * 65_536 <= num_tokens <= 4096 * 65_536:
        assert size == 65_536


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_even_noise_fits_a_block(token_bytes: TokenBytes) -> None:
    count = SHARD_BYTES_MAX // token_bytes
    noise = np.random.default_rng(0).integers(0, 2 ** (8 * token_bytes), count, dtype=np.uint32)
    assert len(encode_shard(noise, token_bytes)) <= limits.BLOCK_BYTES_MAX


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_one_corpus_can_have_all_tokens_that_a_preset_plans(preset: Preset) -> None:
    inner, context = preset.inner, preset.model.context
    planned = inner.total_steps * inner.sequences_per_step * context
    if inner.schedule:
        planned = max(planned, inner.schedule.total_tokens)
    size = default_shard_tokens(planned, 2, context)
    num_shards = -(-planned // size)
    assert num_shards < limits.SHARDS_MAX
    largest = ShardInfo(bytes(32), limits.SHARD_TOKENS_MAX, limits.BLOCK_BYTES_MAX)
    index = ShardIndex(shards=(largest,) * (limits.SHARDS_MAX - 1), heldout=(largest,))
    assert len(to_msgpack(index)) <= limits.BLOCK_BYTES_MAX


def test_too_many_shards_stop_early(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SHARDS_MAX", 5)
    corpus = corpus_of(tmp_path, ["a" * 1000, "b" * 1000])
    with pytest.raises(CorpusError, match="more than 5 shards of 5 tokens; set max_bytes"):
        pack(corpus, ByteTokenizer(), 5, store, 2)
    assert store.num_puts == 5


def test_progress_of_tokenising_ends_at_the_total(library: Corpus, store: Store) -> None:
    seen: list[tuple[str, int, int]] = []
    tokenise(
        library,
        split_documents(library),
        ByteTokenizer(),
        token_bytes=2,
        shard_tokens=65_536,
        context=64,
        put=store.put,
        progress=lambda *report: seen.append(report),
    )
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1:] == (library.num_bytes, library.num_bytes)
