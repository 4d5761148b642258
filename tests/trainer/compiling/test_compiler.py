"""Compiled layers and loss: the same gradients, and a compiler that may fail."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from gossamer.protocol.lora import LoraConfig
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.chunked_loss import NO_TARGET, _loss_in_place, fused_loss
from gossamer.trainer.compiling import compiler as compiler_module
from gossamer.trainer.compiling import parts as parts_module
from gossamer.trainer.compiling.ahead import Order, reason_of
from gossamer.trainer.compiling.compiler import TRIES_MAX, Compiler
from gossamer.trainer.compiling.parts import Backend, compile_parts
from gossamer.trainer.compiling.tools import missing_tools
from gossamer.trainer.inner_step.gradients import STEADY_STEPS, Gradients
from gossamer.trainer.ipc.choices import CompileChoice
from gossamer.trainer.layers import Rotary, run_layer
from gossamer.trainer.model import CompiledParts, Decoder
from gossamer.trainer.resources.device import choose_device
from gossamer.trainer.resources.passes import Pass, Passes
from gossamer.trainer.text.data import num_targets

SEQUENCES = 4
"""Of a step, which are two passes of two."""


class Training:
    """Gradients of a small model on the CPU, with a compiler."""

    def __init__(self, model: ModelConfig, choice: CompileChoice, backend: Backend) -> None:
        self.decoder = Decoder(model)
        self.decoder.initialise(5)
        self.decoder.loss_rows = 16  # two chunks of a pass
        device = choose_device("cpu")
        self.compiler = Compiler(self.decoder, device, model, choice, backend)
        self.passes = Passes(device, model, SEQUENCES, wanted=2)
        self.gradients = Gradients(
            self.decoder, device, self.passes, lambda: None, None, self.compiler
        )

    def take(self, sequences: NDArray[np.int64]) -> tuple[float, list[torch.Tensor]]:
        """Loss and gradients of one step."""
        loss, _ = self.gradients.take(sequences)
        gradients = [p.grad.clone() for p in self.decoder.parameters() if p.grad is not None]
        self.gradients.drop()
        return loss, gradients


MakeTraining = Callable[..., Training]


@pytest.fixture
def training(model_config: ModelConfig) -> Iterator[MakeTraining]:
    made: list[Training] = []

    def make(choice: CompileChoice = "on", backend: Backend = "aot_eager") -> Training:
        made.append(Training(model_config, choice, backend))
        return made[-1]

    yield make
    for each in made:
        each.compiler.close()
    torch.compiler.reset()


@pytest.fixture
def sequences(model_config: ModelConfig) -> NDArray[np.int64]:
    random = np.random.default_rng(0)
    return random.integers(0, model_config.vocabulary, (SEQUENCES, model_config.context + 1))


def assert_same(
    one: tuple[float, list[torch.Tensor]], other: tuple[float, list[torch.Tensor]]
) -> None:
    assert other[0] == pytest.approx(one[0], rel=1e-5)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(theirs, mine, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fused_loss_is_the_loss(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    products = (3 * torch.randn(40, 64, generator=generator)).to(dtype)
    targets = torch.randint(0, 64, (40,), generator=generator)
    targets[::7] = NO_TARGET
    loss, gradient = _loss_in_place(products.clone(), targets)
    fused, fused_gradient = fused_loss(products, targets)
    torch.testing.assert_close(fused, loss)
    assert fused_gradient.dtype == dtype
    torch.testing.assert_close(fused_gradient, gradient)
    assert not fused_gradient[::7].any()


def test_training_begins_eager_and_goes_on_compiled(
    training: MakeTraining, sequences: NDArray[np.int64]
) -> None:
    eager, compiled = training("off"), training()
    first = compiled.take(sequences)
    assert not compiled.compiler.is_in_use  # the size of its passes was not proven
    assert_same(eager.take(sequences), first)
    second = compiled.take(sequences)
    assert compiled.compiler.is_in_use
    assert_same(first, second)
    assert not eager.compiler.is_in_use


def test_checkpointing_and_the_compiler_go_together(
    training: MakeTraining, sequences: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Passes, "present", property(lambda _self: Pass(2, checkpointing=True)))
    monkeypatch.setattr(Passes, "proven", property(lambda _self: Pass(2, checkpointing=True)))
    eager, compiled = training("off"), training()
    found = compiled.take(sequences)
    assert compiled.compiler.is_in_use
    assert compiled.decoder.checkpointing
    assert_same(eager.take(sequences), found)


@pytest.fixture
def adapters(model_config: ModelConfig) -> ModelConfig:
    lora = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))
    return msgspec.structs.replace(model_config, num_layers=3, lora=lora)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_layers_with_adapters_are_compiled_but_for_the_first(
    adapters: ModelConfig,
    sequences: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
    checkpointing: bool,
) -> None:
    """The input of the first one, the frozen embedding's, has no gradient."""
    size = Pass(2, checkpointing=checkpointing)
    for name in ("present", "proven"):
        monkeypatch.setattr(Passes, name, property(lambda _self: size))
    training = Training(adapters, "off", "aot_eager")
    whole = Decoder(adapters.whole)
    whole.initialise(3)
    training.decoder.load_frozen(iter([whole.flat.numpy()]))
    training.decoder.flat.normal_(0.0, 0.1, generator=torch.Generator().manual_seed(0))
    eager = training.take(sequences)
    parts = compile_parts(adapters, size, "aot_eager")
    called: list[nn.Module] = []

    def counted(layer: nn.Module, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        called.append(layer)
        return parts.layer(layer, x, rotary)

    training.decoder.compiled = parts._replace(layer=counted)
    assert_same(eager, training.take(sequences))
    assert set(called) == set(training.decoder.layers[1:])
    torch.compiler.reset()


def test_what_is_compiled_ahead_has_layers_with_adapters(
    adapters: ModelConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the trainer would find none in torch's cache, and compile in a step."""
    called: list[nn.Module] = []

    def counted(layer: nn.Module, x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
        called.append(layer)
        return run_layer(layer, x, rotary)

    def parts_of(model: ModelConfig, size: Pass) -> CompiledParts:
        return CompiledParts((size.sequences, model.context, model.width), counted, fused_loss)

    monkeypatch.setattr(parts_module, "compile_parts", parts_of)
    device = choose_device("cpu")
    for model in (adapters, msgspec.structs.replace(adapters, lora=msgspec.UNSET)):
        called.clear()
        parts_module.compile_now(model, device, Pass(2, checkpointing=False), 16)
        assert len(called) == 1
        called.clear()


def test_other_passes_stay_eager(
    training: MakeTraining, sequences: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shape would otherwise be compiled when it first comes: also those of an evaluation."""
    compiled = training()
    for _ in range(2):
        compiled.take(sequences)
    parts = compiled.decoder.compiled
    assert parts is not None
    assert parts.shape[0] == 2

    def never(*_arguments: object) -> Any:
        raise AssertionError("a pass of another shape was compiled")

    compiled.decoder.compiled = parts._replace(layer=never, loss=never)
    decoder = compiled.decoder
    decoder.loss_sum(torch.from_numpy(sequences[:1])).backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        decoder.loss_sum(torch.from_numpy(sequences[:2]))
    with pytest.raises(AssertionError):
        decoder.loss_sum(torch.from_numpy(sequences[:2]))


def test_layers_are_compiled_for_the_share_of_one_device_of_several(
    training: MakeTraining, sequences: NDArray[np.int64]
) -> None:
    """A pass is sized by the whole step, and has no more sequences than the device's share."""
    compiled = training()
    share = sequences[:1]
    for _ in range(STEADY_STEPS):
        compiled.gradients.take_part(share, num_targets(sequences))
        compiled.gradients.drop()
    assert compiled.decoder.compiled is None, "the share may still change"
    for _ in range(2):
        compiled.gradients.take_part(share, num_targets(sequences))
        compiled.gradients.drop()
    parts = compiled.decoder.compiled
    assert parts is not None
    assert parts.shape[0] == len(share)


def test_a_smaller_pass_is_compiled_anew_and_not_for_ever(
    training: MakeTraining, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = training().compiler
    for number in range(TRIES_MAX):
        compiler.look(Pass(TRIES_MAX - number))
        assert compiler._decoder.compiled is not None
        assert compiler._decoder.compiled.shape[0] == TRIES_MAX - number
    compiler.look(Pass(99))
    assert not compiler.is_in_use
    assert "not compiled" in caplog.text


def test_a_pass_that_fails_in_compiled_code_is_taken_again_without(
    training: MakeTraining, sequences: NDArray[np.int64], caplog: pytest.LogCaptureFixture
) -> None:
    eager = training("off").take(sequences)

    def refuse(*_arguments: object) -> None:
        raise RuntimeError("no such operation")

    broken = training(backend=refuse)
    for _ in range(3):
        assert_same(eager, broken.take(sequences))
    assert not broken.compiler.is_in_use
    assert caplog.text.count("layers are not compiled") == 1
    assert "no such operation" in caplog.text


def test_a_python_without_a_compiler(
    training: MakeTraining, sequences: NDArray[np.int64], caplog: pytest.LogCaptureFixture
) -> None:
    trained = training(backend="none-of-torch's")
    for _ in range(2):
        trained.take(sequences)
    assert "Invalid backend" in caplog.text


def test_an_error_of_the_model_is_no_compilers(
    training: MakeTraining, sequences: NDArray[np.int64], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = training("off")
    monkeypatch.setattr(compiled.decoder, "loss_sum", lambda _sequences: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        compiled.take(sequences)


REFUSES = "import sys; print('BackendCompilerFailed: none here', file=sys.stderr); sys.exit(1)"
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


@pytest.mark.parametrize(
    ("program", "words"), [(REFUSES, "none here"), (CRASHES, "ended with status -11")]
)
def test_a_compiler_that_dies_costs_nothing_but_itself(
    training: MakeTraining,
    sequences: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    program: str,
    words: str,
) -> None:
    monkeypatch.setattr(compiler_module, "COMMAND", (sys.executable, "-c", program))
    trained = training(backend="inductor")
    eager = training("off").take(sequences)
    deadline = time.monotonic() + 60
    while "not compiled" not in caplog.text:
        assert time.monotonic() < deadline
        assert_same(eager, trained.take(sequences))
    assert words in caplog.text
    assert trained.compiler._process is None


def test_a_compiler_that_hangs_is_ended(
    training: MakeTraining,
    sequences: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hanging = (sys.executable, "-c", "import time; time.sleep(600)")
    monkeypatch.setattr(compiler_module, "COMMAND", hanging)
    trained = training(backend="inductor")
    for _ in range(2):
        trained.take(sequences)
    process = trained.compiler._process
    assert process is not None
    assert process.poll() is None
    monkeypatch.setattr(compiler_module, "SECONDS_MAX", 0.0)
    trained.take(sequences)
    assert process.poll() is not None
    assert "was not done after" in caplog.text


def test_a_compiler_that_cannot_be_started_stops_no_training(
    training: MakeTraining,
    sequences: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(compiler_module, "COMMAND", ("/not/there",))
    trained = training(backend="inductor")
    eager = training("off").take(sequences)
    for _ in range(3):
        assert_same(eager, trained.take(sequences))
    assert "the compiler cannot be started" in caplog.text


def test_without_memory_for_it_nothing_is_compiled(
    training: MakeTraining,
    sequences: NDArray[np.int64],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trained = training(backend="inductor")
    device = type(trained.compiler._device)
    monkeypatch.setattr(device, "free_bytes_of_others", lambda _self: 10**8)
    for _ in range(2):
        trained.take(sequences)
    assert trained.compiler._process is None
    assert "compiling needs 0.7 GB beside the training, and 0.1 GB are free" in caplog.text


AT_ONCE = """
import sys
from gossamer.trainer.compiling import ahead
ahead._NICENESS = 0
sys.exit(ahead.main())
"""
"""Compiles as fast as the other tests let it: after them it would wait for minutes."""

TRAINS = """
import sys, time
import numpy as np, torch
from torch._dynamo.utils import counters
torch.set_num_threads(1)
from gossamer.trainer.compiling import compiler
from tests.trainer.compiling.test_compiler import AT_ONCE, Training, assert_same
compiler.COMMAND = (sys.executable, "-c", AT_ONCE)
from tests.support.small_model import MODEL
random = np.random.default_rng(0)
sequences = random.integers(0, MODEL.vocabulary, (4, MODEL.context + 1))
eager = Training(MODEL, "off", "inductor").take(sequences)
compiled = Training(MODEL, "on", "inductor")
deadline = time.monotonic() + 240
while not compiled.compiler.is_in_use:
    assert compiled.compiler._is_on, "see the log"
    assert time.monotonic() < deadline
    compiled.take(sequences)
    time.sleep(0.3)  # the compiler has the processor meanwhile
assert_same(eager, compiled.take(sequences))
assert compiled.compiler.is_in_use
print(counters["stats"]["unique_graphs"], counters["inductor"]["fxgraph_cache_miss"])
"""


@pytest.mark.long
@pytest.mark.skipif(
    bool(missing_tools("cpu")), reason=f"nothing compiles here: {missing_tools('cpu')} missing"
)
def test_the_real_compiler_gives_the_same_gradients(tmp_path: Path) -> None:
    """The process fills torch's cache on the disk, and the trainer then finds everything there.
    Both are processes of their own, as in a daemon: pytest changes what the cache goes by."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS],
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
            "TMPDIR": str(tmp_path),  # for headers, hundreds of megabytes
            "PYTHONPATH": os.getcwd(),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # One compiled function of all layers and one of the loss, and nothing that was not there.
    assert done.stdout.split() == ["2", "0"]


def test_the_choice_is_the_owners(model_config: ModelConfig) -> None:
    device = choose_device("cpu")
    decoder = Decoder(model_config)
    for choice, wanted in (("auto", False), ("off", False), ("on", True)):
        assert Compiler(decoder, device, model_config, choice)._is_on is wanted  # type: ignore[arg-type]


def test_the_order_is_read_as_written(model_config: ModelConfig) -> None:
    order = Order(model_config, "cpu", 2, True, 16, 1)
    assert msgspec.json.decode(msgspec.json.encode(order), type=Order) == order


class OneProcess:
    """A small model whose trainer compiles by itself."""

    def __init__(self, model: ModelConfig, note: Path, backend: Backend = "aot_eager") -> None:
        self.decoder = Decoder(model)
        self.decoder.initialise(5)
        device = choose_device("cpu")
        self.compiler = Compiler(self.decoder, device, model, "on", backend, note)
        passes = Passes(device, model, SEQUENCES, wanted=2)
        self.gradients = Gradients(self.decoder, device, passes, lambda: None, None, self.compiler)

    def step(self, sequences: NDArray[np.int64]) -> None:
        self.gradients.take(sequences)
        self.gradients.drop()


def test_a_trainer_whose_children_have_no_card_compiles_by_itself(
    model_config: ModelConfig, sequences: NDArray[np.int64], tmp_path: Path
) -> None:
    note = tmp_path / "compiling"
    one = OneProcess(model_config, note)
    one.step(sequences)
    assert not note.exists()
    one.step(sequences)
    assert one.compiler.is_in_use
    assert note.exists()
    one.step(sequences)
    assert one.compiler.is_in_use
    assert not note.exists()
    torch.compiler.reset()


def test_a_trainer_that_compiles_by_itself_leaves_no_kernel_to_another_process(
    model_config: ModelConfig,
    sequences: NDArray[np.int64],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch starts processes for kernels unless it is to take one thread. On a card those failed,
    because they could not use it."""
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    one = OneProcess(model_config, tmp_path / "compiling")
    one.step(sequences)
    one.step(sequences)
    assert one.compiler.is_in_use
    assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
    one.compiler.close()
    torch.compiler.reset()


QUOTING = """An exception occurred in a subprocess:

Name=triton_poi_fused_0
Traceback (most recent call last):
  File "worker.py", line 1, in compile
    start()
RuntimeError: the driver says 304

Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace
"""


def test_a_compilers_error_is_told_in_one_line_with_its_cause() -> None:
    assert reason_of(RuntimeError(QUOTING)) == (
        "RuntimeError: An exception occurred in a subprocess: Name=triton_poi_fused_0 "
        "RuntimeError: the driver says 304"
    )
    plain = RuntimeError("backend='inductor' raised:\nRuntimeError: no C compiler\n\nSet VERBOSE=1")
    assert reason_of(plain) == (
        "RuntimeError: backend='inductor' raised: RuntimeError: no C compiler"
    )


def test_after_a_crash_in_the_compiler_the_next_trainer_does_without(
    model_config: ModelConfig,
    sequences: NDArray[np.int64],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    note = tmp_path / "compiling"
    first = OneProcess(model_config, note)
    for _ in range(2):
        first.step(sequences)
    assert note.exists()  # here the process ends, and withdraws nothing
    second = OneProcess(model_config, note)
    for _ in range(3):
        second.step(sequences)
    assert not second.compiler.is_in_use
    assert "the trainer ended when it compiled them the last time" in caplog.text
    note.write_text("another torch")
    third = OneProcess(model_config, note)
    for _ in range(2):
        third.step(sequences)
    assert third.compiler.is_in_use
    third.compiler.close()
    assert not note.exists()
    torch.compiler.reset()
