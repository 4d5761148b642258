"""Conversations: as `transformers` writes them, and only the assistant's tokens are learnt."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import zstandard
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from gossamer.protocol.manifest import TokenSchedule
from gossamer.protocol.model_config import ModelConfig
from gossamer.protocol.shard_index import PROMPT_BIT
from gossamer.protocol.state.run_end import SchedulePlace
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import Decoder
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.pretrained.errors import FolderError
from gossamer.trainer.pretrained.tokenizer import ImportedTokenizer, tokenizer_of
from gossamer.trainer.text.data import load_shard
from gossamer.trainer.text.shard_folder import ShardFolder, put_into
from gossamer.trainer.text.shards import cut_corpus
from gossamer.trainer.text.sources.chat import Chat
from gossamer.trainer.text.sources.corpus import scan_corpus
from gossamer.trainer.text.sources.corpus_errors import (
    BadDocumentError,
    BadFilesError,
    CorpusError,
    Skipped,
)
from tests.support.local_rounds import begin
from tests.support.model_folders import TURN_END, VOCABULARY, config_of_family, make_folder

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] + '<|im_end|>' }}"
    "{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}"
    "{% endfor %}"
)
"""The format of SmolLM2 and Qwen; the marks are what `transformers` needs to tell who speaks."""

LLAMA2 = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'].strip() + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] | trim + ' ' + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

TALK = [
    {"role": "system", "content": "You are kind."},
    {"role": "user", "content": "Grüße! 1 + 1?"},
    {"role": "assistant", "content": "It is 2 — zwei."},
    {"role": "user", "content": "assistant\nIt is 2"},
    {"role": "assistant", "content": "It is 2 — zwei."},
]


def folder_with(folder: Path, template: str | None, **special: str) -> ModelConfig:
    model = make_folder(folder, config_of_family("llama"))
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text()) | special
    del config["chat_template"]
    path.write_text(json.dumps(config | ({"chat_template": template} if template else {})))
    return model


def line(messages: object, **others: object) -> bytes:
    return json.dumps({"messages": messages, **others}).encode()


@pytest.fixture
def tokenizer(tmp_path: Path) -> ImportedTokenizer:
    model = folder_with(tmp_path / "model", CHATML)
    return tokenizer_of(tmp_path / "model", model)


@pytest.fixture
def chat(tokenizer: ImportedTokenizer) -> Chat:
    return tokenizer.chat()


def test_tokens_and_targets_are_those_of_transformers(tmp_path: Path, chat: Chat) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "model").apply_chat_template(
        TALK, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    (ours,) = chat.encode([chat.document(line(TALK))])
    assert (ours & (PROMPT_BIT - 1)).tolist()[:-1] == theirs["input_ids"]
    is_target = (ours < PROMPT_BIT).tolist()
    assert is_target[:-1] == [bool(mask) for mask in theirs["assistant_masks"]]
    assert 0 < sum(is_target) < len(is_target) / 2
    # The end of the text is behind the assistant's last turn, and no part of it.
    assert not is_target[-1]


def test_the_end_of_the_text_ends_a_turn_that_has_no_other_end(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", LLAMA2, bos_token="<|begin|>")
    tokenizer = tokenizer_of(tmp_path / "model", model)
    chat = tokenizer.chat()
    talk = [{"role": "user", "content": " 1 + 1? "}, {"role": "assistant", "content": " 2\n"}]
    (tokens,) = chat.encode([chat.document(line(talk))])
    plain = tokens & (PROMPT_BIT - 1)
    text = tokenizer.decode(plain[plain != 3])  # the begin is no special token to this class
    assert text == "[INST] 1 + 1? [/INST] 2 "
    learnt = tokens[tokens < PROMPT_BIT]
    assert tokenizer.decode(learnt).strip() == "2"
    assert np.count_nonzero(plain == tokenizer.end_token) == 1

    bare = Chat("{{ messages[0].content }}", {}, tokenizer._tokenizer, tokenizer.end_token)
    (tokens,) = bare.encode([bare.document(line([{"role": "assistant", "content": "so"}]))])
    assert tokens.tolist()[-1] == tokenizer.end_token
    assert (tokens < PROMPT_BIT).all()


MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
    "{{ '[INST] ' + m['content'] + '[/INST]' }}{% else %}"
    "{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
)
"""The format of Mistral's instruction models: a space between a question and its answer."""


def told_apart(template: str, answer: str) -> tuple[list[str], list[str]]:
    """The tokens before those that are learnt, and these, of a question and an answer. The
    tokenizer has words with the space before them, as all byte-level ones do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer_type: Any = trainers.BpeTrainer
    trainer = trainer_type(
        vocab_size=400,
        special_tokens=["<s>", "</s>", "[INST]", "[/INST]"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["is it so yes it is"] * 50, trainer)
    end = tokenizer.token_to_id("</s>")
    assert end is not None
    chat = Chat(template, {"bos_token": "<s>", "eos_token": "</s>"}, tokenizer, end)
    talk = [{"role": "user", "content": "is it so"}, {"role": "assistant", "content": answer}]
    (tokens,) = chat.encode([chat.document(line(talk))])
    words = [str(tokenizer.id_to_token(int(each) & (PROMPT_BIT - 1))) for each in tokens]
    first = (tokens < PROMPT_BIT).tolist().index(True)
    assert (tokens[first:] < PROMPT_BIT).all()
    return words[:first], words[first:]


@pytest.mark.parametrize(
    ("answer", "words"), [("yes", ["Ġyes"]), ("yes it is", ["Ġyes", "Ġit", "Ġis"])]
)
def test_the_first_word_of_an_answer_is_learnt_with_the_space_before_it(
    answer: str, words: list[str]
) -> None:
    """Where a template writes a space before an answer, the space and the first word are one
    token, which begins before the answer does."""
    before, learnt = told_apart(MISTRAL, answer)
    assert before[-1] == "[/INST]"
    assert learnt == [*words, "</s>"]


def test_the_end_of_a_turn_is_learnt_behind_a_space() -> None:
    template = LLAMA2.replace("' [/INST]'", "'[/INST]'")
    _, learnt = told_apart(template, "yes")
    assert learnt == ["Ġyes", "Ġ", "</s>"]


def test_an_answer_without_a_word_is_its_end_alone() -> None:
    before, learnt = told_apart(MISTRAL, "")
    assert before[-2:] == ["[/INST]", "Ġ"]
    assert learnt == ["</s>"]


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        (None, 'has a field "messages" that is no list'),
        ([], 'no message of the role "assistant"'),
        ([{"role": "user", "content": "hi"}], 'no message of the role "assistant"'),
        ([{"role": "assistant", "content": None}], 'no text as "content" of message 1'),
        ([{"role": "user", "content": [{"type": "image"}]}], "pictures and calls of tools"),
        ([{"content": "hi"}], 'no text as "role" of message 1'),
        ([{"role": "assistant", "content": "a\0b"}], "byte 0"),
    ],
)
def test_what_is_no_conversation_is_said(chat: Chat, messages: object, said: str) -> None:
    with pytest.raises(BadDocumentError, match=said):
        chat.document(line(messages))


def test_a_line_of_text_is_no_conversation(chat: Chat) -> None:
    with pytest.raises(BadDocumentError, match=r"has no field \"messages\" \(its fields: 'text'\)"):
        chat.document(b'{"text": "hello"}')
    assert chat.document(b" \n") == b""


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('Roles must alternate') }}", "refuses it .Roles must alternate"),
        ("{{ messages[0].content.nothing.there }}", "refuses it"),
        ("{{ '\\ud800' }}", "refuses it"),
        ("{% for m in messages %}{{ m.content[:2] }}{% endfor %}", "does not write message 1"),
        ("{{ messages[0].content }}", "does not write message 1 of the assistant once"),
        (
            "{% for m in messages %}{{ m.content | replace('zwei', '') }}{% endfor %}",
            "changes message 1 of the assistant",
        ),
        ("{{ ''.__class__.__mro__ }}", "refuses it .access to attribute"),
    ],
)
def test_a_template_that_does_not_take_it_is_said(
    tokenizer: ImportedTokenizer, template: str, said: str
) -> None:
    chat = Chat(template, {}, tokenizer._tokenizer, tokenizer.end_token)
    with pytest.raises(BadDocumentError, match=said):
        chat.document(line(TALK))


def test_a_template_that_nests_too_deep_is_said(tokenizer: ImportedTokenizer) -> None:
    template = "{% if x %}" * 5000 + "{% endif %}" * 5000
    with pytest.raises(CorpusError, match="cannot be read"):
        Chat(template, {}, tokenizer._tokenizer, tokenizer.end_token)


def test_a_tokenizer_without_a_template_is_said(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "bare", None)
    with pytest.raises(FolderError, match="no chat template"):
        tokenizer_of(tmp_path / "bare", model).chat()


def test_a_template_in_a_file_of_its_own_is_used(tmp_path: Path) -> None:
    model = folder_with(tmp_path / "model", "{{ messages[1].content }}")
    (tmp_path / "model" / "chat_template.jinja").write_text(CHATML)
    text, _ = tokenizer_of(tmp_path / "model", model).chat().write(TALK)
    assert text.startswith("<|im_start|>system\nYou are kind.<|im_end|>\n")


# Corpora


def talks(number: int, seed: int = 1) -> list[bytes]:
    """Conversations in which a question has one answer."""
    draw = random.Random(seed)
    found = []
    for _ in range(number):
        asked = "".join(draw.choices("abcdefgh", k=6))
        messages = [
            {"role": "user", "content": asked},
            {"role": "assistant", "content": "the answer is yes"},
        ]
        found.append(line(messages))
    return found


def cut(
    chat: Chat, tokenizer: ImportedTokenizer, files: list[Path], folder: Path, context: int = 32
) -> ShardFolder:
    folder.mkdir()
    corpus = scan_corpus(files, seed=1, chat=chat, scratch=folder)
    found = cut_corpus(
        corpus, "files", VOCABULARY, context, put=put_into(folder), tokenizer=tokenizer
    )
    assert found.token_bytes == 4
    return ShardFolder(folder, found.index, found.token_bytes)


def test_packed_lines_give_the_same_shards(
    tmp_path: Path, chat: Chat, tokenizer: ImportedTokenizer
) -> None:
    data = b"\n".join(talks(300))
    plain, packed = tmp_path / "talks.jsonl", tmp_path / "packed.jsonl.zst"
    plain.write_bytes(data)
    packed.write_bytes(zstandard.ZstdCompressor().compress(data))
    of_plain = cut(chat, tokenizer, [plain], tmp_path / "a")
    assert of_plain.index == cut(chat, tokenizer, [packed], tmp_path / "b").index
    # What is held out is whole conversations in their order.
    tokens = np.concatenate(list(of_plain.heldout(VOCABULARY)))
    answers = tokens[tokens < PROMPT_BIT]
    end = tokenizer._tokenizer.token_to_id(TURN_END)
    one = [*tokenizer.encode([b"the answer is yes"])[0].tolist(), end]
    assert len(answers) >= 5 * len(one)
    assert answers.tolist() == one * (len(answers) // len(one))


def test_bad_lines_stop_it_or_are_left_out(tmp_path: Path, chat: Chat) -> None:
    path = tmp_path / "talks.jsonl"
    good = talks(5)
    path.write_bytes(b"\n".join([*good[:3], line([{"role": "user", "content": "?"}]), *good[3:]]))
    (tmp_path / "notes.txt").write_text("no conversation")
    with pytest.raises(BadFilesError, match=r"line 4 has no message of the role \"assistant\""):
        scan_corpus([path], seed=1, chat=chat)
    with pytest.raises(BadFilesError, match=r"conversations are read from \.jsonl files"):
        scan_corpus([tmp_path / "notes.txt"], seed=1, chat=chat)
    skipped = Skipped()
    files = [path, tmp_path / "notes.txt"]
    assert len(scan_corpus(files, seed=1, chat=chat, skipped=skipped).keys) == 5
    assert (skipped.files, skipped.lines) == (1, 1)


# The loss


def trainer_of(model: ModelConfig, base: NDArray[np.float32]) -> LocalTrainer:
    inner = msgspec.structs.replace(
        PRESETS["tiny"].inner, learning_rate=3e-3, warmup_steps=0, sequences_per_step=4
    )
    config = TrainerConfig(model=model, inner=inner, seed=1, token_bytes=4, device="cpu")
    return LocalTrainer(config, base, np.zeros_like(base))


def plain_losses(model: ModelConfig, base: NDArray[np.float32], sequences: torch.Tensor) -> Any:
    """(mean over the assistant's tokens, mean over the others), in torch's own words."""
    decoder = Decoder(model)
    with torch.no_grad():
        decoder.flat.copy_(torch.from_numpy(base))
        logits = decoder(sequences[:, :-1] & (PROMPT_BIT - 1))
    targets = sequences[:, 1:]
    each = F.cross_entropy(
        logits.flatten(0, 1), (targets & (PROMPT_BIT - 1)).flatten(), reduction="none"
    )
    counts = (targets < PROMPT_BIT).flatten()
    return each[counts].mean().item(), each[~counts].mean().item(), int(counts.sum())


@pytest.fixture
def model(tmp_path: Path, tokenizer: ImportedTokenizer) -> ModelConfig:
    config = folder_with(tmp_path / "another", CHATML)
    return msgspec.structs.replace(config, context=32)


def test_the_loss_is_that_of_the_assistants_tokens(
    tmp_path: Path, chat: Chat, tokenizer: ImportedTokenizer, model: ModelConfig
) -> None:
    path = tmp_path / "talks.jsonl"
    path.write_bytes(b"\n".join(talks(300)))
    folder = cut(chat, tokenizer, [path], tmp_path / "shards")
    decoder = Decoder(model)
    decoder.initialise(1)
    base = decoder.flat.numpy().copy()
    trainer = trainer_of(model, base)
    for _ in range(3):
        folder.push_shards(trainer.push, range(len(folder.index.shards)))
    first = load_shard(folder.path_of(folder.index.shards[0].digest), 4, VOCABULARY)
    sequences = torch.from_numpy(first[: 4 * 33].astype(np.int64).reshape(4, 33))
    spoken, _, num_spoken = plain_losses(model, base, sequences)

    begin(trainer, 1, 0, 200, 120.0)
    step = trainer.step()
    assert step is not None
    assert step.loss == pytest.approx(spoken, rel=1e-5)
    assert step.tokens == num_spoken < 4 * 32
    heldout = tuple(folder.path_of(info.digest) for info in folder.index.heldout)
    before = plain_losses(model, base, sequences)[:2]
    for _ in range(150):
        assert trainer.step() is not None
    trainer.finish()
    trained = base - trainer._pseudo_gradient
    after = plain_losses(model, trained, sequences)[:2]
    # The answer is always the same, and the questions are drawn: only the first can be learnt, and
    # only the first is.
    assert after[0] < 0.1 * before[0]
    assert after[1] > before[1] - 0.5
    base[:] = trained
    evaluated = trainer.evaluate(heldout, 10_000)
    assert evaluated.loss < 0.15 * math.log(VOCABULARY)
    held = np.concatenate([load_shard(path, 4, VOCABULARY) for path in heldout])
    assert evaluated.tokens <= np.count_nonzero(held < PROMPT_BIT)


def test_a_step_of_prompts_alone_changes_nothing(tmp_path: Path, model: ModelConfig) -> None:
    tokens = np.full(4 * 33, 7 | PROMPT_BIT, np.uint32)
    path = tmp_path / "shard"
    path.write_bytes(zstandard.ZstdCompressor().compress(tokens.tobytes()))
    decoder = Decoder(model)
    decoder.initialise(1)
    trainer = trainer_of(model, decoder.flat.numpy().copy())
    trainer.push(0, str(path), 0, len(tokens))
    begin(trainer, 1, 0, 1, 60.0)
    step = trainer.step()
    assert step is not None
    assert (step.tokens, step.skipped, step.loss) == (0, False, 0.0)
    assert trainer.finish().tokens == 0
    assert not trainer._pseudo_gradient.any()


def test_a_schedule_of_tokens_counts_those_that_are_learnt(
    tmp_path: Path, model: ModelConfig
) -> None:
    """The chain counts no others, so that the next round would begin far behind the last step."""
    length, num_steps = model.context + 1, 3
    tokens = np.full((4 * num_steps, length), 7 | PROMPT_BIT, np.uint32)
    tokens[:, -2:] = 7  # two targets a sequence
    path = tmp_path / "shard"
    path.write_bytes(zstandard.compress(tokens.astype("<u4").tobytes()))
    decoder = Decoder(model)
    decoder.initialise(1)
    trainer = trainer_of(model, decoder.flat.numpy().copy())
    trainer.push(0, str(path), 0, tokens.size)
    schedule = TokenSchedule(warmup_tokens=1_000, total_tokens=10_000, cooldown_tokens=0)
    peers, before = 2, 500
    place = SchedulePlace(
        schedule=schedule, tokens_before=before, tokens_per_step=peers * 4 * model.context
    )
    begin(trainer, 1, 0, num_steps, 60.0, place=place)
    trained = 0
    for _ in range(num_steps):
        step = trainer.step()
        assert step is not None
        assert step.tokens == 8
        trained += step.tokens
        wanted = 3e-3 * (before + peers * trained) / 1_000
        assert step.learning_rate == pytest.approx(wanted)


@pytest.fixture
def questions(tmp_path: Path, model: ModelConfig) -> str:
    """A shard of sixteen sequences, of which only the last two have a target."""
    length = model.context + 1
    tokens = np.arange(16 * length, dtype=np.uint32) % 64
    tokens[: 14 * length] |= PROMPT_BIT
    path = tmp_path / "questions"
    path.write_bytes(zstandard.compress(tokens.astype("<u4").tobytes()))
    return str(path)


def test_an_audit_tells_where_nothing_is_to_be_said(model: ModelConfig, questions: str) -> None:
    """A long question fills whole sequences. That is no damage of the shard."""
    decoder = Decoder(model)
    decoder.initialise(1)
    base = decoder.flat.numpy().copy()
    trainer = trainer_of(model, base)
    trainer.audited = base
    length = model.context + 1
    prompt, answer = trainer.audit([(questions, 0), (questions, 15 * length)]).losses
    assert math.isnan(prompt)
    assert math.isfinite(answer)


@pytest.mark.parametrize("seconds_max", [math.inf, 0.0])
def test_an_evaluation_goes_on_to_where_something_is_to_be_said(
    model: ModelConfig, questions: str, seconds_max: float
) -> None:
    decoder = Decoder(model)
    decoder.initialise(1)
    trainer = trainer_of(model, decoder.flat.numpy().copy())
    evaluated = trainer.evaluate((questions,), 10**6, seconds_max)
    assert math.isfinite(evaluated.loss)
    assert 0 < evaluated.tokens <= 3 * (model.context + 1)
    nothing = trainer.evaluate((questions,), 10 * model.context)
    assert math.isnan(nothing.loss)
    assert (nothing.tokens, nothing.bits_per_byte) == (0, None)
