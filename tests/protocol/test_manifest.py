"""Manifests: one form, and every mistake explained."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.decoding import to_msgpack
from gossamer.protocol.errors import MalformedError, ManifestError, OversizedError, VersionError
from gossamer.protocol.ids import digest_of
from gossamer.protocol.manifest import Manifest, decode_manifest, encode_manifest
from gossamer.protocol.manifest_checks import problems_of, require_valid
from gossamer.protocol.model_config import ImportedShape, RopeScaling
from gossamer.protocol.shard_index import ShardIndex, ShardInfo, decode_index
from gossamer.protocol.state.run_end import RunEnd
from gossamer.protocol.sync_modes import SyncMode
from tests.support.builders import manifest, peer, peers


def changed(path: str, value: object) -> Manifest:
    """The example with one value, as `section.key` or `key`, replaced."""
    section, _, key = path.rpartition(".")
    good = manifest()
    if not section:
        return msgspec.structs.replace(good, **{key: value})
    part = msgspec.structs.replace(getattr(good, section), **{key: value})
    return msgspec.structs.replace(good, **{section: part})


def test_a_manifest_comes_back_from_its_bytes_and_names_its_run() -> None:
    good = manifest()
    assert problems_of(good) == []
    assert require_valid(good) is good
    data = encode_manifest(good)
    assert decode_manifest(data) == good
    assert good.run_id == digest_of(data)


def test_a_run_from_before_there_was_a_choice_of_optimizer_keeps_its_id() -> None:
    old, chosen = manifest(), changed("inner.optimizer", "muon")
    assert b"optimizer" not in encode_manifest(old)
    assert not old.inner.uses_muon
    assert chosen.inner.uses_muon
    assert decode_manifest(encode_manifest(chosen)) == chosen
    assert chosen.run_id != old.run_id
    with pytest.raises(MalformedError):
        decode_manifest(encode_manifest(changed("inner.optimizer", "sgd")))


def test_shared_steps_have_no_inner_optimizer_to_choose() -> None:
    run = changed("inner.optimizer", "muon")
    shared = msgspec.structs.replace(run, sync="distro")
    said = [problem for problem in problems_of(shared) if "inner.optimizer" in problem]
    assert len(said) == 1
    assert "distro" in said[0]
    assert not any("inner.optimizer" in problem for problem in problems_of(run))


def imported(shape: ImportedShape) -> Manifest:
    """The example as a run that began with a folder."""
    good = manifest()
    data = msgspec.structs.replace(good.data, tokenizer="files", tokenizer_digest=bytes(32))
    return msgspec.structs.replace(good, data=data, model=changed("model.imported", shape).model)


SCALING = RopeScaling(
    factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=8192
)
SHAPE = ImportedShape(family="qwen3", head_width=16, rope_scaling=SCALING)


def test_a_manifest_of_an_imported_model_comes_back_from_its_bytes() -> None:
    good = imported(SHAPE)
    assert problems_of(good) == []
    assert decode_manifest(encode_manifest(good)) == good
    # Runs that there were before keep their bytes, and so their ids.
    assert b"imported" not in encode_manifest(manifest())


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"head_width": 15}, "head_width is 15; it must be even"),
        ({"head_width": 0}, "head_width is 0"),
        ({"rope_scaling": msgspec.structs.replace(SCALING, factor=0.5)}, "factor is 0.5"),
        (
            {"rope_scaling": msgspec.structs.replace(SCALING, low_frequency_factor=float("nan"))},
            "low_frequency_factor is nan",
        ),
        (
            {"rope_scaling": msgspec.structs.replace(SCALING, low_frequency_factor=4.0)},
            "must be below the high one",
        ),
        ({"rope_scaling": msgspec.structs.replace(SCALING, original_context=1)}, "original_con"),
    ],
)
def test_a_mistake_of_an_imported_shape_is_said(shape: dict[str, object], said: str) -> None:
    wrong = imported(msgspec.structs.replace(SHAPE, **shape))
    assert any(said in problem for problem in problems_of(wrong))
    with pytest.raises(MalformedError):
        decode_manifest(encode_manifest(wrong))


def test_an_imported_model_has_its_own_tokenizer_and_no_other_model_has() -> None:
    assert problems_of(changed("data.tokenizer", "files"))
    assert problems_of(changed("model.imported", SHAPE))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("name", ""),
        ("name", "x" * 300),
        ("founder", "not-a-peer"),
        ("allowed", ("not-a-peer",)),
        ("allowed", tuple(peer(i) for i in range(limits.MEMBERS_MAX + 1))),
        ("admission", "allow"),  # and no peer allowed
        ("seed", -1),
        ("genesis_digest", b""),
        ("model.num_layers", 0),
        ("model.width", 66),  # not a multiple of the heads
        ("model.num_kv_heads", 3),
        ("model.vocabulary", 100),  # bytes need 256
        ("model.rope_theta", float("nan")),
        ("model.norm_epsilon", 0.0),
        ("inner.learning_rate", float("inf")),
        ("inner.beta1", 1.0),
        ("inner.clip_norm", 0.0),
        ("outer.momentum", 1.0),
        ("outer.inner_steps", 0),
        ("outer.top_k", 4097),
        ("outer.error_decay", 1.1),
        ("outer.fragments", 0),
        ("outer.fragments", 3),  # of two layers
        ("outer.chunk_elements", limits.CHUNK_ELEMENTS_MIN - 1),
        ("rounds.gather_seconds", 0.0),
        ("rounds.stale_rounds", 0),
        ("data.num_shards", 0),
        ("data.index_digest", bytes(31)),
        ("data.tokenizer_digest", bytes(31)),
    ],
)
def test_every_mistake_is_said_with_its_key(path: str, value: object) -> None:
    wrong = changed(path, value)
    problems = problems_of(wrong)
    assert problems
    assert any(path.split(".")[-1] in problem for problem in problems)
    with pytest.raises(ManifestError):
        require_valid(wrong)
    with pytest.raises(MalformedError):
        decode_manifest(encode_manifest(wrong))


@pytest.mark.parametrize("sync", ["diloco", "sparse", "distro"])
@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    "key", ["num_layers", "width", "num_heads", "num_kv_heads", "hidden_width"]
)
def test_a_shape_that_nothing_can_be_computed_of_is_a_mistake_in_each_mode(
    sync: SyncMode, value: int, key: str
) -> None:
    wrong = replace(changed(f"model.{key}", value), sync=sync)
    assert any(f"model.{key} is {value}" in problem for problem in problems_of(wrong))
    with pytest.raises(MalformedError):
        decode_manifest(encode_manifest(wrong))


@pytest.mark.parametrize("version", [0, limits.PROTOCOL_VERSION - 1, limits.PROTOCOL_VERSION + 1])
def test_another_version_is_named_whatever_else_differs(version: int) -> None:
    maps = msgspec.msgpack.decode(encode_manifest(manifest()))
    del maps["outer"]["overlap"]
    with pytest.raises(VersionError, match=f"version {version}; this Gossamer speaks"):
        decode_manifest(msgspec.msgpack.encode({**maps, "version": version}))
    assert any("version" in problem for problem in problems_of(changed("version", version)))


def test_several_mistakes_are_said_at_once() -> None:
    wrong = msgspec.structs.replace(changed("inner.beta1", 2.0), seed=-1, name="")
    assert len(problems_of(wrong)) == 3


def test_a_manifest_has_one_form() -> None:
    good = manifest()
    maps = msgspec.msgpack.decode(encode_manifest(good))
    turned = dict(reversed(maps.items()))
    with pytest.raises(MalformedError, match="canonical"):
        decode_manifest(msgspec.msgpack.encode(turned))
    with pytest.raises(MalformedError):
        decode_manifest(msgspec.msgpack.encode({**maps, "extra": 1}))
    del maps["rounds"]["checkpoint_rounds"]  # a default is written out
    with pytest.raises(MalformedError, match="canonical"):
        decode_manifest(msgspec.msgpack.encode(maps))


def test_size_is_checked_before_anything_else() -> None:
    with pytest.raises(OversizedError):
        decode_manifest(bytes(limits.MANIFEST_BYTES_MAX + 1))


def test_the_warm_up_of_the_outer_step() -> None:
    outer = manifest().outer
    assert [outer.inner_steps_of(n) for n in (1, 2, 3)] == [5, 5, 50]
    assert [outer.rates_of(n, 4) for n in (2, 3)] == [(1.0, 0.0), (0.7, 0.9)]
    assert [outer.first_inner_step_of(n) for n in (1, 2, 3, 4)] == [0, 5, 10, 60]


def end_of(manifest: Manifest) -> RunEnd:
    return RunEnd(manifest.model, manifest.inner, manifest.outer)


@pytest.mark.parametrize("fragments", [1, 2])
def test_a_run_ends_with_the_round_that_completes_the_planned_steps(fragments: int) -> None:
    endless = changed("outer.fragments", fragments)  # two rounds of 5 steps, then of 50 or 25
    assert endless.last_round is None
    assert not end_of(endless).is_over_after(10**9, 10**9)
    for total in (1, 4, 5, 6, 10, 11, 35, 36, 60, 61, 110, 1000):
        inner = msgspec.structs.replace(endless.inner, total_steps=total, ends=True)
        ending = msgspec.structs.replace(endless, inner=inner)
        last = ending.last_round
        assert last is not None
        first_step_of = ending.outer.first_inner_step_of
        assert first_step_of(last) < total <= first_step_of(last + 1)
        is_over_after = end_of(ending).is_over_after
        assert [is_over_after(n, 10**9) for n in (0, last - 1, last, last + 1)] == [
            False, False, True, True,
        ]  # fmt: skip


def test_a_manifest_without_the_end_keeps_its_bytes() -> None:
    endless, inner = manifest(), manifest().inner
    assert b"ends" not in encode_manifest(endless)
    for ends in (True, False):
        new = msgspec.structs.replace(endless, inner=msgspec.structs.replace(inner, ends=ends))
        assert decode_manifest(encode_manifest(new)) == new
        assert new.run_id != endless.run_id
        assert (new.last_round is None) == (not ends)


def test_a_manifest_without_wider_sums_keeps_its_bytes_and_its_codec() -> None:
    old = changed("outer.codec", "int4")
    assert b"widening" not in encode_manifest(old)
    for widening, bits in ((msgspec.UNSET, 4), (False, 4), (True, 5)):
        outer = msgspec.structs.replace(old.outer, widening=widening)
        run = msgspec.structs.replace(old, outer=outer)
        assert decode_manifest(encode_manifest(run)) == run
        assert (run.run_id == old.run_id) == (widening is msgspec.UNSET)
        payloads = payloads_of(run.sync, run.outer, run.trust)
        sum_bytes = 2 + 128 * bits // 8
        assert payloads.is_length(sum_bytes, 128, (1 << 9) - 1, is_average=False)
        assert payloads.is_length(2 + 128 * 4 // 8, 128, (1 << 9) - 1, is_average=True)


def test_a_manifest_without_sparse_sums_keeps_its_bytes_and_its_sets() -> None:
    old = changed("sync", "sparse")
    assert b"sparse_sums" not in encode_manifest(old)
    size, mask = 4096, (1 << 40) - 1
    for sparse_sums in (msgspec.UNSET, False, True):
        outer = msgspec.structs.replace(old.outer, sparse_sums=sparse_sums)
        run = msgspec.structs.replace(old, outer=outer)
        assert problems_of(run) == []
        assert decode_manifest(encode_manifest(run)) == run
        assert (run.run_id == old.run_id) == (sparse_sums is msgspec.UNSET)
        payloads = payloads_of(run.sync, run.outer, run.trust)
        average_bytes = 2 * 32 + 4 * size // 8
        assert payloads.is_length(average_bytes, size, mask, is_average=True) == bool(sparse_sums)
        # Members who do not trust each other send sets in any case.
        signed = payloads_of(run.sync, run.outer, "open")
        assert not signed.is_length(average_bytes, size, mask, is_average=True)


def test_a_manifest_without_chunks_of_a_step_keeps_its_bytes_and_has_one() -> None:
    old = replace(manifest(), sync="distro", outer=replace(manifest().outer, warmup_rounds=0))
    assert problems_of(old) == []
    assert b"step_chunks" not in encode_manifest(old)
    assert old.outer.chunks_of_step == 1
    new = replace(old, outer=replace(old.outer, step_chunks=2))
    assert problems_of(new) == []
    assert decode_manifest(encode_manifest(new)).outer.chunks_of_step == 2
    assert new.run_id != old.run_id


def test_a_manifest_from_before_own_data_and_conversations_keeps_its_bytes() -> None:
    old = manifest()
    assert not old.data.own
    assert not old.data.messages
    data = encode_manifest(old)
    assert b"own" not in data
    assert b"messages" not in data
    own = msgspec.structs.replace(old.data, num_shards=0, num_tokens=0, own=True)
    run = msgspec.structs.replace(old, data=own)
    assert problems_of(run) == []
    assert decode_manifest(encode_manifest(run)) == run
    assert run.run_id != old.run_id


def test_a_manifest_from_before_data_that_grow_keeps_its_bytes() -> None:
    assert b"grows" not in encode_manifest(manifest())
    growing = changed("data.grows", True)
    assert decode_manifest(encode_manifest(growing)) == growing
    own = msgspec.structs.replace(growing.data, num_shards=0, num_tokens=0, own=True)
    assert any("not the founder's to add" in p for p in problems_of(replace(growing, data=own)))


def test_a_run_of_own_data_lists_none_and_another_some() -> None:
    said = problems_of(changed("data.own", True))
    assert any(problem.startswith("data.num_shards") for problem in said)
    assert any(problem.startswith("data.num_tokens") for problem in said)
    assert problems_of(changed("data.num_shards", 0))
    assert any(
        "chat template" in problem for problem in problems_of(changed("data.messages", True))
    )


def test_a_manifest_without_accusers_keeps_its_bytes_and_means_one() -> None:
    old = manifest()
    assert b"accusers" not in encode_manifest(old)
    assert old.rounds.num_accusers == 1
    for accusers in (1, 2):
        new = changed("rounds.accusers", accusers)
        assert decode_manifest(encode_manifest(new)) == new
        assert new.run_id != old.run_id
        assert new.rounds.num_accusers == accusers
    for wrong in (0, 3):
        (problem,) = problems_of(changed("rounds.accusers", wrong))
        assert "rounds.accusers" in problem


def test_a_manifest_without_keepers_and_probation_keeps_its_bytes() -> None:
    old = manifest()
    assert b"keepers" not in encode_manifest(old)
    assert b"probation" not in encode_manifest(old)
    assert not old.rounds.keeper_ids
    keepers = tuple(peers(3))
    new = changed("rounds.keepers", keepers)
    assert decode_manifest(encode_manifest(new)) == new
    assert new.rounds.keeper_ids == keepers
    for wrong in ((*keepers, keepers[0]), ("nobody",), tuple(peers(17))):
        (problem,) = problems_of(changed("rounds.keepers", wrong))
        assert "rounds.keepers" in problem
    (problem,) = problems_of(changed("rounds.probation", 16))
    assert 'only trust = "open"' in problem
    opened = replace(changed("rounds.probation", 16), trust="open")
    assert decode_manifest(encode_manifest(opened)) == opened
    too_long = replace(changed("rounds.probation", 65), trust="open")
    (problem,) = problems_of(too_long)
    assert "rounds.probation is 65" in problem


def test_a_turn_of_a_fragment_has_its_share_of_the_inner_steps() -> None:
    outer = changed("outer.fragments", 2).outer
    assert [outer.inner_steps_of(n) for n in (1, 2, 3)] == [5, 5, 25]
    assert [outer.first_inner_step_of(n) for n in (2, 3, 4, 5)] == [5, 10, 35, 60]
    assert outer.round_steps_max == 25
    assert changed("outer.fragments", 2).stale_rounds == 2 * manifest().stale_rounds


def test_fragments_are_for_dense_rounds_that_can_be_divided() -> None:
    good = changed("outer.fragments", 2)
    assert problems_of(good) == []
    odd = msgspec.structs.replace(good.outer, inner_steps=49)
    (problem,) = problems_of(msgspec.structs.replace(good, outer=odd))
    assert "divide" in problem
    (problem,) = problems_of(msgspec.structs.replace(good, sync="sparse"))
    assert "sparse" in problem


def test_what_one_peer_did_alone_is_adopted_as_it_is() -> None:
    outer = manifest().outer
    assert [outer.rates_of(3, n) for n in (1, 2, 8)] == [(1.0, 0.0), (0.7, 0.9), (0.7, 0.9)]


def test_the_number_of_parameters() -> None:
    # 2 layers of 64 * 16 * (2 * 4 + 2 * 2) + 3 * 64 * 128 + 2 * 64, 256 * 64 and the last norm.
    assert manifest().model.num_parameters == 2 * (12_288 + 24_576 + 128) + 16_384 + 64


def test_a_shard_index_is_checked() -> None:
    good = ShardInfo(digest_of(b"shard"), 1000, 500)
    index = ShardIndex(shards=(good,), heldout=(good,))
    assert decode_index(to_msgpack(index)) == index
    for wrong in (
        ShardInfo(b"", 1000, 500),
        ShardInfo(good.digest, 0, 500),
        ShardInfo(good.digest, limits.SHARD_TOKENS_MAX + 1, 500),
        ShardInfo(good.digest, 1000, limits.BLOCK_BYTES_MAX + 1),
    ):
        with pytest.raises(MalformedError):
            decode_index(to_msgpack(ShardIndex(shards=(wrong,), heldout=())))
    with pytest.raises(OversizedError):
        decode_index(to_msgpack(ShardIndex(shards=(good,) * limits.SHARDS_MAX, heldout=(good,))))
