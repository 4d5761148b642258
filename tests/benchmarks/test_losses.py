"""The driver of the table of losses: names of arms, kept results, and what must come out alike."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from gossamer.node.runs.planning.draft import Draft, draft_of_preset
from tests.benchmarks import losses, parity
from tests.benchmarks._losses_arms import GROUPS, arm_of
from tests.benchmarks._losses_diloco import Setting, train_diloco
from tests.benchmarks._losses_distro import train_distro
from tests.benchmarks._losses_report import draw, panels_of, plain_of
from tests.benchmarks._losses_sparse import train_sparse
from tests.benchmarks._losses_text import mixed
from tests.benchmarks._losses_workers import place_at
from tests.benchmarks._parity_training import Curve
from tests.benchmarks._results import Result, Results, load_results

RESULTS = Path(__file__).parent / "results"
STEPS = 24


def test_a_name_says_what_an_arm_does() -> None:
    arm = arm_of("diloco-4-h50-int4-o50-f2-topics-grow-0.7/0.9")
    assert (arm.kind, arm.num_peers, arm.inner_steps, arm.codec) == ("diloco", 4, 50, "int4")
    assert (arm.overlap, arm.fragments, arm.rates) == (0.5, 2, (0.7, 0.9))
    assert arm.topics
    assert arm.peers == "grow"
    assert not arm.displacement


def test_muon_is_compared_with_adamw_and_its_variants_with_itself() -> None:
    plain = "diloco-4-h20-fp32-muon-lr0.01"
    assert arm_of(plain).muon
    assert plain_of(arm_of(plain)) == "diloco-4-h20-fp32-lr0.01"
    for variant in ("diloco-4-h20-int4-muon-lr0.01", "sparse-4-h20-muon-lr0.01"):
        assert plain_of(arm_of(variant)) == plain


def test_wsd_holds_the_rate_and_lets_it_fall_at_the_end() -> None:
    draft = losses.draft_of(losses.parse_options(["--small"]))
    arm = arm_of("diloco-4-h20-fp32-wsd20")
    assert plain_of(arm) == "diloco-4-h20-fp32"
    inner = msgspec.structs.replace(draft.inner, schedule=losses.schedule_of(draft, arm))

    def rate(step: int) -> float:
        place = place_at(inner, step)
        assert place is not None
        return place.learning_rate(0, inner) / inner.learning_rate

    assert rate(0) == pytest.approx(1 / inner.warmup_steps)
    assert {rate(step) for step in (inner.warmup_steps, 400, 639)} == {1.0}
    assert 0.4 < rate(680) < 0.6
    assert rate(inner.total_steps - 1) == pytest.approx(inner.final_fraction)
    assert place_at(draft.inner, 0) is None


@pytest.mark.parametrize("name", ["adam-4", "diloco-4-int5", "diloco-4-o", "diloco-4--h20"])
def test_a_name_that_means_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"means nothing|no arm"):
        arm_of(name)


def test_all_groups_are_of_arms() -> None:
    for names in GROUPS.values():
        assert [arm_of(name).name for name in names] == list(names)


def test_swarms_grow_and_shrink_step_by_step() -> None:
    progress = np.linspace(0, 1, 9)
    grow, shrink = arm_of("diloco-4-grow"), arm_of("diloco-4-shrink")
    assert [grow.num_peers_at(p) for p in progress] == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert [shrink.num_peers_at(p) for p in progress] == [4, 4, 3, 3, 2, 2, 1, 1, 1]


def result(arm: str, seed: int, loss: float) -> Result:
    return Result(
        arm=arm,
        seed=seed,
        loss=loss,
        bits_per_byte=1.0,
        tokens=1,
        rounds=1,
        seconds=1.0,
        steps=[1, 2],
        losses=[loss + 1, loss],
    )


def test_results_are_kept_and_belong_to_their_settings(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "results.json"
    settings = losses.settings_of(losses.parse_options(["--small"]))
    results = load_results(path, settings, fresh=False)
    results.results += [result("sync-4", 1, 2.0), result("sync-4", 2, 4.0)]
    results.save(path)
    assert load_results(path, settings, fresh=False) == results
    assert results.mean_of("sync-4", [1, 2]) == 3.0
    assert results.mean_of("sync-4", [1, 2, 3]) is None
    assert load_results(path, settings, fresh=True).results == []
    others = losses.settings_of(losses.parse_options([]))
    with pytest.raises(SystemExit, match="other settings"):
        load_results(path, others, fresh=False)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("losses_small.json", ["--small"]),
        ("losses_tuning.json", ["--small"]),
        ("losses_muon.json", ["--small"]),
    ],
)
def test_kept_results_are_of_the_settings_that_the_driver_has(
    name: str, arguments: list[str]
) -> None:
    settings = losses.settings_of(losses.parse_options(arguments))
    kept = load_results(RESULTS / name, settings, fresh=False)
    assert all(arm_of(each.arm).name == each.arm for each in kept.results)


def test_parity_kept_results_are_of_the_settings_that_it_has() -> None:
    settings = parity.settings_of(parity.parse_options([]))
    assert load_results(RESULTS / "parity.json", settings, fresh=False).results


def test_the_picture_has_every_arm_once(tmp_path: Path) -> None:
    names = ["sync-4", "diloco-4-h20-fp32", "diloco-4-h20-int8-o10", "diloco-3-h7-int8"]
    panels = panels_of(names)
    assert sorted(name for names in panels.values() for name in names) == sorted(names)
    assert panels["others"] == ["diloco-3-h7-int8"]
    results = Results(settings=losses.settings_of(losses.parse_options([])))
    results.results += [result(name, seed, 2.0 + seed) for name in names for seed in (1, 2)]
    draw(results, [1, 2], names, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    """Two peers, a model of a few thousand parameters, rounds of 2 and then of 6 steps."""
    folder = tmp_path_factory.mktemp("text")
    draft = small_draft(folder / "corpus")
    dealt = mixed(draft, folder / "shards", 2)
    torch.set_num_threads(1)
    return Setting(
        dealt.text,
        draft.model,
        draft.inner,
        draft.outer,
        (1.0, 0.8),
        draft.seed,
        dealt.shards.__getitem__,
        1,
    )


def small_draft(corpus: Path) -> Draft:
    corpus.mkdir()
    for number in range(64):
        text = "".join(f"line {n} of file {number} says {n * number}\n" for n in range(120))
        (corpus / f"{number}.py").write_text(text)
    draft, change = draft_of_preset(), msgspec.structs.replace
    return change(
        draft,
        corpus=change(draft.corpus, paths=(str(corpus),)),
        model=change(
            draft.model,
            num_layers=1,
            width=16,
            num_heads=2,
            num_kv_heads=2,
            hidden_width=32,
            context=16,
        ),
        inner=change(
            draft.inner,
            total_steps=STEPS,
            warmup_steps=2,
            sequences_per_step=2,
            optimizer="adamw",
        ),
        outer=change(
            draft.outer,
            overlap=False,
            warmup_rounds=3,
            warmup_inner_steps=2,
            chunk_elements=1024,
        ),
    )


def test_one_peer_does_not_notice_overlap(setting: Setting) -> None:
    """The peer moves at a rebase by the state that it handed over itself, which is no move at
    all."""
    at_once = train_diloco(setting, arm_of("diloco-1-h6-fp32"))
    late = train_diloco(setting, arm_of("diloco-1-h6-fp32-o50"))
    assert late.final == pytest.approx(at_once.final, rel=1e-4)


def test_rates_codecs_and_overlap_make_a_difference(setting: Setting) -> None:
    names = (
        "fp32",
        "int4",
        "fp32-o50",
        "fp32-o50-a0.5",
        "fp32-1.0/0.0",
        "fp32-cold",
        "fp32-d1.4",
        "fp32-grow",
    )
    finals = [train_diloco(setting, arm_of(f"diloco-2-h6-{name}")).final for name in names]
    assert len(set(finals)) == len(names)


def test_fragments_divide_the_inner_steps(setting: Setting) -> None:
    with pytest.raises(ValueError, match="4 fragments of 6 steps"):
        train_diloco(setting, arm_of("diloco-2-h6-f4"))


def test_a_sparse_run_whose_rounds_are_all_dense_is_a_dense_run(setting: Setting) -> None:
    """The modes are equal where the warm-up is as long as the run."""
    outer = msgspec.structs.replace(setting.outer, warmup_rounds=STEPS // 2)
    warm = Setting(**{**vars(setting), "outer": outer})
    dense = train_diloco(warm, arm_of("diloco-2-h6-int8"))
    sparse = train_sparse(warm, arm_of("sparse-2-h6-int8-dense"))
    assert curve(sparse) == curve(dense)
    assert curve(train_sparse(warm, arm_of("sparse-2-h6"))) != curve(dense)


def test_shared_steps_follow_what_the_name_of_an_arm_says(setting: Setting) -> None:
    names = ("distro-1", "distro-2", "distro-2-k4", "distro-2-b0.5", "distro-2-look")
    finals = [train_distro(setting, arm_of(name)).final for name in (*names, "distro-2-lr0.001")]
    assert len(set(finals)) == len(finals)


def curve(of: Curve) -> tuple[list[int], list[float], int]:
    return of.steps, of.losses, of.tokens
