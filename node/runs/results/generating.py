"""Text from a committed state of a state directory, by a process of its own that has torch."""

from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from gossamer.node.base.settings.settings import ConfigError, Settings
from gossamer.node.runs.results.reading import StateOnDisk, read_state, warn_if_older
from gossamer.protocol.ids import short
from gossamer.trainer.ipc import memory
from gossamer.trainer.ipc.environment import computing_environment
from gossamer.trainer.ipc.generation import (
    LINE_BYTES_MAX,
    PROMPT_BYTES_MAX,
    TEMPERATURE_MAX,
    TOKENS_MAX,
    Done,
    FromGenerator,
    GenerateText,
    LoadModel,
    Refused,
    Text,
    frame,
    lines,
)
from gossamer.trainer.resources.device_names import may_be_several, problem_of

# Letters that turn the direction of others, in which a text on a terminal can lie.
_TURNING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


class GenerateError(Exception):
    """No text can be generated; the text says why and what to do."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How a text is continued."""

    tokens: int
    temperature: float
    seed: int
    device: str


def generate_text(
    settings: Settings, prompt: str, sampling: Sampling, round_number: int | None = None
) -> int:
    """Prints a prompt and its continuation by the newest state, or by that after a round.

    Raises:
        StateDirError: there is no run, no such round, or the disk has too little to rebuild it.
        ConfigError: an option is not allowed.
        GenerateError: the model cannot be run.
    """
    prompt = prompt.encode(errors="replace").decode()  # an argument may hold bytes that are no text
    require_allowed(prompt, sampling)
    state = read_state(settings, round_number)
    warn_if_older(state)
    entry = state.entry
    print(f"round {entry.round}, state {short(entry.state_digest)}", file=sys.stderr, flush=True)
    print(for_terminal(prompt), end="", flush=True)
    try:
        for piece in pieces(settings, state, prompt, sampling):
            print(for_terminal(piece), end="", flush=True)
    finally:
        print(flush=True)
    return 0


def require_allowed(prompt: str, sampling: Sampling) -> None:
    """Raises ConfigError for a text that is too long, and for options out of their range."""
    problems = []
    if len(prompt.encode()) > PROMPT_BYTES_MAX:
        problems.append(f"the text has over {PROMPT_BYTES_MAX:,} bytes: give a shorter one")
    if not 1 <= sampling.tokens <= TOKENS_MAX:
        problems.append(f"--tokens is {sampling.tokens}; allowed: 1 to {TOKENS_MAX:,}")
    if not 0 <= sampling.temperature <= TEMPERATURE_MAX:
        problems.append(
            f"--temperature is {sampling.temperature:g}; allowed: 0 (always the likeliest token) "
            f"to {TEMPERATURE_MAX:g}"
        )
    if not 0 <= sampling.seed < 2**63:
        problems.append(f"--seed is {sampling.seed}; allowed: 0 to {2**63 - 1}")
    if problem := problem_of_device(sampling.device):
        problems.append(problem)
    if problems:
        raise ConfigError(problems)


def problem_of_device(device: str) -> str:
    """Why the option `--device` names no device that a model could run on, on any machine; empty if
    all is well."""
    if problem := problem_of(device):
        return f"--device: {problem}"
    return f"--device: {device!r} is not one device" if may_be_several(device) else ""


def pieces(
    settings: Settings, state: StateOnDisk, prompt: str, sampling: Sampling
) -> Iterator[str]:
    """The continuation, from a process that ends with this iterator.

    Raises:
        GenerateError: the model cannot be run.
    """
    given = msgspec.structs.asdict(sampling)
    device = given.pop("device")
    with TemporaryDirectory(prefix="gossamer-generate-") as folder:
        descriptor = share_parameters(state)
        try:
            tasks = load_model(state, descriptor, device), GenerateText(prompt=prompt, **given)
            process = subprocess.Popen(
                generator_command(settings, folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[descriptor],
                env=computing_environment(),
            )
        finally:
            os.close(descriptor)
        with process:
            try:
                for answer in _answers(process, b"".join(frame(task) for task in tasks)):
                    if isinstance(answer, Text):
                        yield answer.text
            finally:
                process.kill()


def share_parameters(state: StateOnDisk) -> int:
    """Returns a new file descriptor with the parameters of a state. Raises OSError if memory is
    short."""
    num_parameters = state.model.num_parameters
    descriptor = memory.create("gossamer-generate", num_parameters)
    np.copyto(memory.open_vector(descriptor, num_parameters), state.parameters)
    return descriptor


def load_model(state: StateOnDisk, descriptor: int, device: str) -> LoadModel:
    """Returns the first message to a process with the model."""
    return LoadModel(
        model=state.model,
        base_fd=descriptor,
        tokenizer=state.manifest.data.tokenizer,
        tokenizer_block=state.tokenizer or b"",
        device=device,
    )


def generator_command(settings: Settings, folder: str) -> list[str]:
    """Returns the command of the process with the model, which may write to one folder."""
    confined_to = [folder] if settings.confine_trainer == "on" else []
    return [sys.executable, "-m", "gossamer.trainer.generation.generate", *confined_to]


def read_answer(line: bytes) -> FromGenerator:
    """Returns the message of the process in a line. Raises GenerateError if it is none."""
    try:
        return lines.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GenerateError(f"the process with the model wrote no message: {error}") from error


def _answers(process: subprocess.Popen[bytes], tasks: bytes) -> Iterator[FromGenerator]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(tasks)
        process.stdin.close()
    except BrokenPipeError:
        pass  # it died; its exit status is told below
    while line := process.stdout.readline(LINE_BYTES_MAX):
        message = read_answer(line)
        if isinstance(message, Refused):
            raise GenerateError(message.problem)
        yield message
        if isinstance(message, Done):
            return
    raise GenerateError(
        f"the process with the model ended with status {process.wait()}; if memory is short, free "
        "some"
    )


def for_terminal(text: str) -> str:
    """A text with its lines, without what would move the cursor or turn letters around, and without
    letters that the terminal does not have."""
    shown = "".join(
        character.encode("unicode_escape").decode() if _is_harmful(character) else character
        for character in text
    )
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding)


def _is_harmful(character: str) -> bool:
    is_control = unicodedata.category(character) == "Cc" and character not in "\n\t"
    return is_control or character in _TURNING
