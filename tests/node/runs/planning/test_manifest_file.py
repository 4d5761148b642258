import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.node.runs.planning.draft import (
    DISTRO_MEMBERS_WANTED,
    Draft,
    ScheduleDraft,
    SourceDraft,
    draft_of_preset,
    open_chunk_elements_max,
    problems_of_draft,
    schedule_of,
)
from gossamer.node.runs.planning.manifest_file import (
    MANIFEST_FILE_BYTES_MAX,
    parse_manifest_file,
    read_manifest_file,
    render,
    write_manifest_file,
)
from gossamer.node.runs.planning.manifest_keys import EXPLANATIONS, HINTS
from gossamer.node.storage.state.shared_parameters import sign_payloads
from gossamer.protocol import limits
from gossamer.protocol.codecs.payloads import payloads_of
from gossamer.protocol.errors import ManifestError
from gossamer.protocol.ids import peer_id_from_public_key
from gossamer.protocol.manifest import InnerOptimizer, Trust
from gossamer.protocol.state.chunk_plan import default_chunk_elements
from gossamer.trainer.presets.modes import SMALL_DISTRO
from gossamer.trainer.presets.table import PRESETS
from tests.support.builders import peers

PEER = peer_id_from_public_key(bytes(range(32)))
replace = msgspec.structs.replace


def parse(text: str) -> Draft:
    return parse_manifest_file(text, Path("/somewhere"))


def problems_of(text: str) -> list[str]:
    with pytest.raises(ManifestError) as caught:
        parse(text)
    return caught.value.problems


@pytest.mark.parametrize("codec", ["fp32", "fp16", "int8", "int4"])
@pytest.mark.parametrize("preset", ["tiny", "150m"])
def test_the_chunks_of_an_open_run_have_room_for_31_records(preset: str, codec: str) -> None:
    text = f'preset = "{preset}"\ntrust = "open"\n[outer]\ncodec = "{codec}"\n'
    draft = parse(text)
    payloads = payloads_of(draft.sync, draft.outer, draft.trust)
    assert payloads.members_max(draft.outer.chunk_elements) >= 31
    room = open_chunk_elements_max(draft.sync, draft.outer)
    if room < limits.CHUNK_ELEMENTS_MAX:
        (problem,) = problems_of(text + f"chunk_elements = {room + 1}")
        assert problem.startswith(f"outer.chunk_elements is {room + 1}; with trust")
        assert parse(text + f"chunk_elements = {room}").outer.chunk_elements == room


@pytest.mark.parametrize("preset", PRESETS)
def test_a_written_file_gives_the_presets_values_back(preset: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_manifest_file(path, draft_of_preset(preset), preset=preset)

    draft = read_manifest_file(path)

    assert draft == draft_of_preset(preset)
    chosen = PRESETS[preset]
    assert (draft.model, draft.inner) == (chosen.model, chosen.inner)
    assert (draft.outer, draft.rounds) == (PRESETS[preset].outer, PRESETS[preset].rounds)


def test_every_key_of_a_written_file_is_explained() -> None:
    assert {s: set(keys) for s, keys in EXPLANATIONS.items()} == {
        section: set(hints) for section, hints in HINTS.items()
    }
    lines = render(draft_of_preset()).splitlines()
    for number, line in enumerate(lines):
        if "=" in line and not line.startswith("#"):
            assert lines[number - 1].startswith("# "), line


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    with pytest.raises(ManifestError, match="exists already; name another file"):
        write_manifest_file(path, draft_of_preset())
    assert path.read_text() == "mine"
    with pytest.raises(ManifestError, match="no such file or directory; name another file"):
        write_manifest_file(tmp_path / "missing" / "run.toml", draft_of_preset())


NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


@settings(max_examples=50, deadline=None)
@given(
    name=NAME,
    seed=st.integers(0, 2**63 - 1),
    field=NAME,
    learning_rate=st.floats(1e-8, 10.0),
    tied=st.booleans(),
    width=st.integers(1, 50).map(lambda n: 8 * n),
    chunk_elements=st.sampled_from([1024, 5000, 2**20]),
    optimizer=st.sampled_from(get_args(InnerOptimizer)),
)
def test_any_draft_survives_the_file(
    name: str,
    seed: int,
    field: str,
    learning_rate: float,
    tied: bool,
    width: int,
    chunk_elements: int,
    optimizer: InnerOptimizer,
) -> None:
    draft = draft_of_preset("1m", name=name)
    inner = replace(draft.inner, learning_rate=learning_rate, optimizer=optimizer)
    draft = replace(
        draft,
        seed=seed,
        admission="allow",
        allowed=(PEER,),
        corpus=replace(draft.corpus, paths=('/a "b"\\c', str(Path(f"/{name}"))), text_field=field),
        model=replace(draft.model, tied_embeddings=tied, width=width),
        inner=inner,
        outer=replace(draft.outer, chunk_elements=chunk_elements),
    )
    assert parse(render(draft)) == draft


def test_a_short_file_names_a_preset_and_what_differs() -> None:
    draft = parse('preset = "5m"\nname = "mine"\n[model]\nnum_layers = 2\n[inner]\nclip_norm = 2\n')

    assert draft.name == "mine"
    assert draft.model == replace(PRESETS["5m"].model, num_layers=2)
    assert draft.inner == replace(PRESETS["5m"].inner, clip_norm=2.0)
    assert isinstance(draft.inner.clip_norm, float)  # an integer is not the same canonical bytes
    # The chunks follow the model where the file does not set them.
    assert draft.outer.chunk_elements == default_chunk_elements(draft.model.num_parameters)
    assert replace(draft.outer, chunk_elements=0) == replace(PRESETS["5m"].outer, chunk_elements=0)


def test_the_chunks_of_a_streaming_run_are_those_of_a_fragment() -> None:
    draft = parse('preset = "150m"\n[outer]\ninner_steps = 400\nfragments = 4')
    assert draft.outer.chunk_elements == default_chunk_elements(draft.model.num_parameters // 4)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_new_file_says_where_its_settings_come_from(preset: str) -> None:
    text = render(draft_of_preset(preset), preset=preset)
    assert f"# They {PRESETS[preset].origin}." in text.splitlines()


@pytest.mark.parametrize("preset", ["tiny", "1.1b"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_sparse_run_has_an_outer_step_of_its_own(preset: str, optimizer: InnerOptimizer) -> None:
    of_preset = PRESETS[preset]
    step = of_preset.sparse_steps.of(optimizer)
    top = f'preset = "{preset}"\nname = "mine"\n'
    inner = f'[inner]\noptimizer = "{optimizer}"\n'
    outer = parse(f'{top}sync = "sparse"\n{inner}').outer
    assert (outer.learning_rate, outer.momentum, outer.displacement) == step
    sends_all = (preset, optimizer) == ("tiny", "muon")
    assert outer.top_k == (4096 if sends_all else of_preset.outer.top_k)
    assert parse(top).outer == of_preset.outer
    dense = parse(f"{top}{inner}").outer
    assert (dense.learning_rate, dense.momentum) == of_preset.dense_steps.of(optimizer)[:2]
    named = parse(f'{top}sync = "sparse"\n{inner}[outer]\nmomentum = 0.25\n').outer
    assert (named.learning_rate, named.momentum) == (step.learning_rate, 0.25)


LORA = '[model.lora]\nrank = 4\nalpha = 8\ntargets = ["q_proj"]\n'


def test_a_file_that_names_no_optimizer_has_that_of_its_mode() -> None:
    top = 'preset = "1m"\n'
    chosen = [parse(f'{top}sync = "{sync}"').inner for sync in ("diloco", "sparse", "distro")]
    assert [inner.optimizer for inner in chosen] == ["muon", "muon", "adamw"]
    assert parse(f'{top}trust = "open"').inner.optimizer == "adamw"
    assert parse(top + LORA).inner.optimizer == "adamw"
    assert not parse_manifest_file(top, Path("/"), from_weights=True).inner.uses_muon
    for sync, optimizer in (("diloco", "adamw"), ("sparse", "muon")):
        named = f'{top}sync = "{sync}"\n[inner]\noptimizer = "{optimizer}"\n'
        for from_weights in (False, True):
            draft = parse_manifest_file(named, Path("/"), from_weights=from_weights)
            assert draft.inner.optimizer == optimizer


@pytest.mark.parametrize("preset", ["tiny", "150m"])
def test_the_optimizer_of_a_written_file_follows_what_is_edited(preset: str) -> None:
    text = render(draft_of_preset(preset))
    assert '\n# optimizer = "muon"\n' in text
    sparse = text.replace('\nsync = "diloco"', '\nsync = "sparse"')
    example = next(line for line in text.splitlines() if line.startswith("# lora = "))
    adapters = text.replace(example, example.removeprefix("# "))
    among_strangers = text.replace('\ntrust = "members"', '\ntrust = "open"')
    edited = text, sparse, adapters, among_strangers
    assert [parse(each).inner.optimizer for each in edited] == ["muon", "muon", "adamw", "adamw"]
    draft = draft_of_preset(preset)
    chosen = replace(draft, inner=replace(draft.inner, optimizer="adamw"))
    assert '\noptimizer = "adamw"\n' in render(chosen)
    assert parse(render(chosen)) == chosen


def test_a_run_of_shared_steps_has_what_they_need() -> None:
    draft = parse('preset = "tiny"\nsync = "distro"')
    assert (draft.outer.warmup_rounds, draft.outer.overlap) == (0, False)
    assert draft.inner.learning_rate == SMALL_DISTRO.learning_rate
    assert (draft.inner.beta1, draft.outer.top_k) == (SMALL_DISTRO.decay, SMALL_DISTRO.top_k)
    assert parse('preset = "150m"\nsync = "distro"').inner.beta1 == 0.999
    for line in ("warmup_rounds = 3", "overlap = true"):
        with pytest.raises(ManifestError, match=line.split()[0]):
            parse(f'preset = "tiny"\nsync = "distro"\n[outer]\n{line}')


@pytest.mark.parametrize("trust", ["members", "open"])
@pytest.mark.parametrize("preset", PRESETS)
def test_shared_steps_of_every_preset_have_room_for_64_peers(preset: str, trust: Trust) -> None:
    draft = parse(f'preset = "{preset}"\nsync = "distro"\ntrust = "{trust}"')
    payloads = sign_payloads(draft.model, draft.outer, trust)
    assert payloads.members_max(1) >= DISTRO_MEMBERS_WANTED == 64
    in_one = replace(draft.outer, step_chunks=msgspec.UNSET)
    is_small = sign_payloads(draft.model, in_one, trust).members_max(1) >= 64
    assert (draft.outer.step_chunks is msgspec.UNSET) == is_small == (preset in ("tiny", "1m"))
    if not is_small:
        assert isinstance(draft.outer.step_chunks, int)
        fewer = replace(draft.outer, step_chunks=draft.outer.step_chunks - 1)
        assert sign_payloads(draft.model, fewer, trust).members_max(1) < 64
    written = render(draft)
    assert f"\n# step_chunks = {draft.outer.chunks_of_step}\n" in written
    assert parse(written) == draft


def test_chunks_of_a_step_are_for_shared_steps_and_each_has_tiles() -> None:
    assert parse('preset = "150m"').outer.step_chunks is msgspec.UNSET
    with pytest.raises(ManifestError, match=r"outer\.step_chunks is 3; only the steps of"):
        parse('preset = "tiny"\n[outer]\nstep_chunks = 3')
    for sync, top_k in (("distro", 0), ("distro", 5000), ("diloco", 64)):
        text = f'preset = "150m"\nsync = "{sync}"\n[outer]\nstep_chunks = 0\ntop_k = {top_k}'
        with pytest.raises(ManifestError) as raised:
            parse(text)
        assert "outer.step_chunks is 0" in str(raised.value)
    with pytest.raises(ManifestError, match=r"outer\.step_chunks is 29; allowed: 1 to 28"):
        parse('preset = "tiny"\nsync = "distro"\n[outer]\nstep_chunks = 29')
    most = parse('preset = "tiny"\nsync = "distro"\n[outer]\nstep_chunks = 28')
    assert sign_payloads(most.model, most.outer).coder.num_chunks == 28
    long = 'preset = "10m"\nsync = "distro"\n[outer]\ninner_steps = 32000\nstep_chunks = 2'
    with pytest.raises(ManifestError, match=r"outer\.step_chunks is 2; allowed: 1 to 1"):
        parse(long)


def test_the_tokenizer_sets_the_models_vocabulary() -> None:
    draft = parse('preset = "tiny"\n[tokenizer]\nkind = "bpe"\nvocabulary = 1000')
    assert (draft.tokenizer.kind, draft.model.vocabulary) == ("bpe", 1000)
    draft = parse('preset = "40m"\n[tokenizer]\nkind = "bytes"')
    assert (draft.tokenizer.vocabulary, draft.model.vocabulary) == (256, 256)


def test_corpus_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    # Some editors write a byte order mark before the text.
    path.write_text('\ufeffpreset = "tiny"\n[corpus]\npaths = ["texts", "/absolute", "~/home"]')
    assert read_manifest_file(path).corpus.paths == (
        str(tmp_path / "texts"),
        "/absolute",
        os.path.expanduser("~/home"),
    )


MISTAKES = [
    ("nme = 'x'", "nme is not a key; did you mean name?"),
    ("zzzzz = 1", "zzzzz is not a key; allowed at the top: preset, name, seed, sync, trust, "),
    ("[modle]\nwidth = 1", "modle is not a key; did you mean model?"),
    ("[model]\nlayers = 1", "model.layers is not a key; did you mean model.num_layers?"),
    (
        "[outer]\nzzzzz = 1",
        "outer.zzzzz is not a key; allowed in [outer]: inner_steps, learning_rate",
    ),
    ("[model]\nvocabulary = 9", "model.vocabulary is not a key; set tokenizer.vocabulary instead"),
    ("model = 3", "model is 3; allowed: a table, begun with [model]"),
    ("name = 3", "name is 3; allowed: text in quotes"),
    ("name = ''", "name has 0 characters; allowed: 1 to 256"),
    ("seed = 'one'", 'seed is "one"; allowed: a whole number'),
    ("seed = -1", "seed is -1; allowed: 0 to "),
    ("seed = 99999999999999999999999", "seed is 99999999999999999999999; allowed: "),
    ("sync = 'dense'", 'sync is "dense"; allowed: "diloco", "sparse"'),
    ("admission = 'closed'", 'admission is "closed"; allowed: "open", "allow"'),
    ("admission = 'allow'", 'admission is "allow" but allowed is empty: no peer could join'),
    ("allowed = 'me'", 'allowed is "me"; allowed: a list of strings, such as ["one", "two"]'),
    ("allowed = ['me']", "allowed: 'me' is not the peer id of an Ed25519 key"),
    ("[corpus]\npaths = [1]", "corpus.paths is a list; allowed: a list of strings"),
    ("[corpus]\npaths = ['']", "corpus.paths has an empty path; allowed: files and folders"),
    ("[corpus]\ntext_field = ''", "corpus.text_field is empty; allowed: the name of a field"),
    ("[corpus]\nmax_bytes = -1", "corpus.max_bytes is -1; allowed: 0 (all) or more"),
    ("[tokenizer]\nkind = 'words'", 'tokenizer.kind is "words"; allowed: "bytes", "bpe"'),
    ("[tokenizer]\nkind = 'bpe'", 'tokenizer.vocabulary is missing; allowed for "bpe": 257 to '),
    ("[tokenizer]\nvocabulary = 300", 'tokenizer.vocabulary is 300; allowed for "bytes": 256'),
    (
        "[tokenizer]\nkind = 'bpe'\nvocabulary = 256",
        'tokenizer.vocabulary is 256; allowed for "bpe": 257 to 1048576',
    ),
    ("[model]\nwidth = 'wide'", 'model.width is "wide"; allowed: a whole number'),
    ("[model]\nwidth = 96.5", "model.width is 96.5; allowed: a whole number"),
    ("[model]\nwidth = 0", "model.width is 0; allowed: 8 to 65536"),
    (
        "[model]\nwidth = 97",
        "model.width is 97; it must be an even multiple of model.num_heads (4)",
    ),
    ("[model]\nnum_heads = 0", "model.num_heads is 0; allowed: 1 to 1024"),
    ("[model]\nnum_kv_heads = 3", "model.num_kv_heads is 3; it must divide model.num_heads (4)"),
    ("[model]\ntied_embeddings = 1", "model.tied_embeddings is 1; allowed: true or false"),
    ("[model]\ncontext = 300000", "model.context is 300000; allowed: 8 to 260096"),
    ("[inner]\nlearning_rate = nan", "inner.learning_rate is nan; allowed: 1e-08 to 10"),
    ("[inner]\nbeta1 = true", "inner.beta1 is true; allowed: a number"),
    (
        "[inner]\nwarmup_steps = 900",
        "inner.warmup_steps is 900; allowed: at most inner.total_steps (800)",
    ),
    ("[outer]\ncodec = 'int3'", 'outer.codec is "int3"; allowed: "fp32", "fp16", "int8", "int4"'),
    ("[outer]\nfragments = 0", "outer.fragments is 0; allowed: 1 to 256"),
    (
        "[outer]\ninner_steps = 100\nfragments = 5",
        "outer.fragments is 5; allowed: 1 to model.num_layers (4)",
    ),
    (
        "[outer]\ninner_steps = 100\nfragments = 3",
        "outer.fragments is 3; it must divide outer.inner_steps (100)",
    ),
    ("[outer]\nmixing = 1.5", "outer.mixing is 1.5; allowed: 0 to 1"),
    (
        "[outer]\noverlap = false\nmixing = 0.5",
        "outer.mixing is 0.5; without overlap and fragments it is 0",
    ),
    ("sync = 'distro'\n[outer]\nmixing = 0.5", "outer.mixing is 0.5; without overlap"),
    (
        "sync = 'sparse'\n[outer]\ninner_steps = 100\nfragments = 2",
        'outer.fragments is 2; with sync = "sparse" it is 1',
    ),
    ("[outer]\nchunk_elements = 10", "outer.chunk_elements is 10; allowed: 1024 to "),
    ("[rounds]\ngather_seconds = 0", "rounds.gather_seconds is 0.0; allowed: 0.1 to 3600"),
]


@pytest.mark.parametrize(("text", "expected"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_one_mistake_gives_one_sentence(text: str, expected: str) -> None:
    (problem,) = problems_of(f'preset = "tiny"\n{text}\n')
    assert problem.startswith(expected)
    assert "\n" not in problem


def test_all_mistakes_are_reported_at_once() -> None:
    problems = problems_of(
        """
        preset = "huge"
        nme = "x"
        seed = -3
        [model]
        width = "wide"
        num_heads = 4
        num_kv_heads = 3
        [inner]
        learning_rate = -1
        [outer]
        codec = "int3"
        inner_steps = 0
        """
    )
    assert [problem.split(";")[0] for problem in problems] == [
        'preset is "huge"',
        "nme is not a key",
        'model.width is "wide"',
        'outer.codec is "int3"',
        "seed is -3",
        "model.num_kv_heads is 3",
        "inner.learning_rate is -1.0",
        "outer.inner_steps is 0",
    ]


def test_a_wrong_value_causes_no_complaint_about_another() -> None:
    # 97 is no multiple of the 4 heads that stand in for "many".
    assert len(problems_of('preset = "tiny"\n[model]\nwidth = 97\nnum_heads = "many"')) == 1
    # Neither is 100 of the preset that was meant, perhaps.
    assert len(problems_of('preset = "tyni"\n[model]\nwidth = 97')) == 1


def test_a_file_without_a_preset_must_be_complete() -> None:
    (problem,) = problems_of(render(draft_of_preset()).replace("\nwidth = 96", ""))
    assert problem.startswith("missing: model.width; give each, or take them from a preset")
    (problem,) = problems_of("")
    assert "model.num_layers, model.width" in problem
    assert "model.rope_theta" not in problem


def test_more_chunks_than_the_protocol_allows_are_refused() -> None:
    (problem,) = problems_of('preset = "1.1b"\n[outer]\nchunk_elements = 1024')
    assert problem.startswith("number of chunks (model.num_parameters / outer.chunk_elements) is ")


def test_files_that_are_no_manifests_are_named(tmp_path: Path) -> None:
    def problem_of(content: bytes | None) -> str:
        path = tmp_path / "run.toml"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ManifestError) as caught:
            read_manifest_file(path)
        (problem,) = caught.value.problems
        return problem

    assert "run.toml: no such file or directory; write one with: gossamer init" in problem_of(None)
    assert "run.toml is not valid TOML: " in problem_of(b"seed = = 3")
    assert "at line 2" in problem_of(b"seed = 3\nseed = 4\n")
    assert "is not UTF-8 text" in problem_of(b"\xff\xfe")
    assert "name the right one" in problem_of(b"#" * (MANIFEST_FILE_BYTES_MAX + 1))


def test_an_unknown_preset_is_refused() -> None:
    with pytest.raises(ManifestError, match='preset is "2m"; allowed: "tiny", "1m"'):
        draft_of_preset("2m")


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_allowed(preset: str) -> None:
    assert problems_of_draft(draft_of_preset(preset)) == []


@pytest.mark.parametrize("sync", ["sparse", "distro"])
@pytest.mark.parametrize("preset", ["tiny", "1m", "10m", "150m"])
def test_presets_are_allowed_in_other_modes(preset: str, sync: str) -> None:
    """Some of them choose their momentum, which these modes cannot."""
    draft = parse(f'preset = "{preset}"\nsync = "{sync}"')
    assert draft.outer.displacement == 0
    assert problems_of_draft(draft) == []


def test_the_file_is_toml_that_others_can_read() -> None:
    document = tomllib.loads(render(draft_of_preset("10m")))
    assert document["model"]["width"] == 384
    assert document["outer"]["codec"] == "fp16"


def test_reading_manifests_does_not_import_torch() -> None:
    code = (
        "import sys, gossamer.node.runs.planning.manifest_file\n"
        "import gossamer.node.runs.founding.founding\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sources_have_paths_and_weights() -> None:
    text = """
        preset = "tiny"
        [corpus]
        max_bytes = 1000
        [[corpus.sources]]
        path = "code/*.py"
        weight = 7
        [[corpus.sources]]
        path = "/texts"
    """
    draft = parse(text)
    assert draft.corpus.sources == (
        SourceDraft(path="/somewhere/code/*.py", weight=7.0),
        SourceDraft(path="/texts", weight=1.0),
    )
    assert parse(render(draft)) == draft


def test_sources_can_be_added_to_a_written_file() -> None:
    text = render(draft_of_preset("tiny"))
    assert "# sources = [{" in text
    more = '[[corpus.sources]]\npath = "a"\nweight = 0.5\n'
    assert parse(text + more).corpus.sources[0].weight == 0.5


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ("[{path = 'a', wieght = 2}]", "unknown field `wieght` - at `$[0]`"),
        ("[{weight = 2}]", "missing required field `path`"),
        ("['a']", "allowed: tables [[corpus.sources]]"),
        (
            "[{path = 'a', weight = 0}]",
            "gives a the weight 0.0; allowed: a number",
        ),
        ("[{path = 'a', weight = nan}]", "the weight nan; allowed"),
        ("[{path = 'a', weight = inf}]", "the weight inf; allowed"),
        ("[{path = ''}]", "corpus.sources has an empty path"),
        ("[{path = 'a'}]\npaths = ['b']", "paths and corpus.sources exclude each other"),
        (str([{}] * 65).replace("{}", "{path = 'a'}").replace('"', ""), "has 65 entries"),
    ],
)
def test_wrong_sources_are_explained(sources: str, expected: str) -> None:
    (problem,) = problems_of(f'preset = "tiny"\n[corpus]\nsources = {sources}')
    assert expected in problem


@pytest.mark.parametrize("sync", ["diloco", "sparse", "distro"])
def test_a_model_without_heads_is_a_mistake_in_each_mode(sync: str) -> None:
    found = problems_of(f'preset = "tiny"\nsync = "{sync}"\n[model]\nnum_heads = 0')
    assert any("model.num_heads is 0; allowed: 1 to" in each for each in found)


def test_a_file_chooses_how_the_run_is_counted() -> None:
    tokens = schedule_of(parse('preset = "150m"').inner)
    assert (tokens.kind, tokens.total_tokens) == ("wsd", 88_000 * 512 * 1024)
    for choice in ('[schedule]\nkind = "cosine"', 'sync = "distro"'):
        assert parse(f'preset = "150m"\n{choice}').inner.schedule is msgspec.UNSET
    small = parse(
        'preset = "1m"\n[schedule]\nkind = "wsd"\ntotal_tokens = 1000\ncooldown_tokens = 200'
    )
    wanted = ScheduleDraft(kind="wsd", total_tokens=1000, cooldown_tokens=200)
    assert schedule_of(small.inner) == wanted
    assert parse_manifest_file(render(small), Path("/")) == small
    for text, problem in (
        ('preset = "1m"\n[schedule]\nkind = "wsd"', "schedule.total_tokens is 0; allowed: 1 to"),
        ('preset = "1m"\n[schedule]\ntotal_tokens = 5', 'schedule.kind is "cosine"'),
        (
            'preset = "1m"\n[schedule]\nkind = "wsd"\ntotal_tokens = 5\nwarmup_tokens = 6',
            "6 together; allowed: at most schedule.total_tokens (5)",
        ),
    ):
        assert any(problem in each for each in problems_of(text)), text


def test_the_number_of_accusers_is_the_founders_choice(tmp_path: Path) -> None:
    text = render(draft_of_preset("tiny"))
    assert parse_manifest_file(text, tmp_path).rounds.num_accusers == 1
    chosen = text.replace("# accusers = 2", "accusers = 2")
    assert parse_manifest_file(chosen, tmp_path).rounds.num_accusers == 2


def test_keepers_and_a_probation_are_the_founders_choice(tmp_path: Path) -> None:
    text = render(draft_of_preset("tiny"))
    plain = parse_manifest_file(text, tmp_path).rounds
    assert not plain.keeper_ids
    assert not plain.probation
    example = next(line for line in text.splitlines() if line.startswith("# keepers"))
    one, two = peers(2)
    chosen = text.replace(example, f'keepers = ["{one}", "{two}"]')
    assert parse_manifest_file(chosen, tmp_path).rounds.keeper_ids == (one, two)
    chosen = text.replace("# probation = 16", "probation = 16")
    with pytest.raises(ManifestError, match=r'only trust = "open" has one'):
        parse_manifest_file(chosen, tmp_path)
    chosen = chosen.replace('trust = "members"', 'trust = "open"')
    assert parse_manifest_file(chosen, tmp_path).rounds.probation == 16
