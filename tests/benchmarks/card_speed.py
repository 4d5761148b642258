"""How fast does a card train: eager, compiled, and beside a plain loop? Needs a CUDA card.

    python -m tests.benchmarks.card_speed
    python -m tests.benchmarks.card_speed --presets 1.1b --sequences 16 --seconds 20

For each preset, on random tokens, with bf16 products where the card has them. The arms take turns,
so that a card whose clock changes meets them alike; shown are medians:

    eager      passes as a trainer takes them at its start
    compiled   the same when the layers and the loss are compiled
    plain      a loop as it is written by hand, with layers and loss compiled one by one: autocast
               with its cache, all logits at once, `torch.optim.AdamW(fused=True)`; the same shapes
    MFU        operations of the model's products and its attention (arXiv 2204.02311, appendix B),
               of those that the card's maker states
    tried      the pass that the trainer chose, and GB at the peak of each arm

Then what the parts of a step cost: an update of AdamW and of Muon, as part of a step of the
preset's size; and the handing over of a round's work at its beginning and its end.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
import zstandard
from msgspec.structs import replace
from torch import Tensor, nn

from gossamer.node.machine.card_rates import peak_operations
from gossamer.node.runs.planning.step_estimate import operations_of_token
from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.compiling.compiler import Compiler
from gossamer.trainer.inner_step.gradients import Gradients
from gossamer.trainer.inner_step.muon import optimizer_for
from gossamer.trainer.ipc.messages import TrainerConfig
from gossamer.trainer.local_trainer import LocalTrainer
from gossamer.trainer.model import decoder_on
from gossamer.trainer.presets.preset import Preset
from gossamer.trainer.presets.table import PRESETS
from gossamer.trainer.resources.device import Device, choose_device
from gossamer.trainer.resources.passes import Passes
from tests.support.local_rounds import begin

GB = 1000**3


class PlainLayer(nn.Module):
    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = (
            model.num_heads,
            model.num_kv_heads,
            model.head_width,
        )
        queries, keys = model.query_width, model.key_width
        self.qkv = nn.Linear(model.width, queries + 2 * keys, bias=False)
        self.out = nn.Linear(queries, model.width, bias=False)
        self.up = nn.Linear(model.width, 2 * model.hidden_width, bias=False)
        self.down = nn.Linear(model.hidden_width, model.width, bias=False)
        self.norm1, self.norm2 = nn.RMSNorm(model.width), nn.RMSNorm(model.width)
        self.sizes = [queries, keys, keys]

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        B, T, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).split(self.sizes, dim=-1)
        q = turned(q.view(B, T, self.heads, self.head_width).transpose(1, 2), cosines, sines)
        k = turned(k.view(B, T, self.kv_heads, self.head_width).transpose(1, 2), cosines, sines)
        v = v.view(B, T, self.kv_heads, self.head_width).transpose(1, 2)
        grouped = self.heads != self.kv_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, -1))
        gate, up = self.up(self.norm2(x)).chunk(2, dim=-1)
        added: Tensor = self.down(F.silu(gate) * up)
        return x + added


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = x.float().chunk(2, dim=-1)
    parts = (first * cosines - second * sines, second * cosines + first * sines)
    return torch.cat(parts, dim=-1).to(x.dtype)


class Plain(nn.Module):
    """A model of the same shape."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(model.vocabulary, model.width)
        self.layers = nn.ModuleList(PlainLayer(model) for _ in range(model.num_layers))
        self.norm = nn.RMSNorm(model.width)
        self.head = nn.Linear(model.width, model.vocabulary, bias=False)
        half = model.head_width // 2
        frequencies = 1.0 / model.rope_theta ** (torch.arange(half) / half)
        angles = torch.outer(torch.arange(model.context).float(), frequencies)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cosines, self.sines)
        return plain_loss(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


@torch.compile
def plain_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets)


class Arm:
    """One way to take a step of some sequences, with its times."""

    def __init__(self, name: str, take: Callable[[], object]) -> None:
        self.name, self._take = name, take
        self.times: list[float] = []
        self.peak_bytes = 0

    def once(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        self._take()
        torch.cuda.synchronize()
        self.times.append(time.perf_counter() - started)
        self.peak_bytes = torch.cuda.max_memory_allocated()

    @property
    def seconds(self) -> float:
        return statistics.median(self.times[1:] or self.times)


def wait_for_compiled(gradients: Gradients, sequences: np.ndarray, compiler: Compiler) -> float:
    """Trains until the compiled layers are in use; returns the seconds that it took."""
    started = time.perf_counter()
    while not compiler.is_in_use:
        gradients.take(sequences)
        gradients.drop()
        if not compiler._is_on:
            raise SystemExit("the layers were not compiled, see above")
    gradients.take(sequences)  # the first of them compiles what the disk has
    gradients.drop()
    return time.perf_counter() - started


def measure_speed(preset: Preset, device: Device, options: argparse.Namespace) -> None:
    model = preset.model
    decoder = decoder_on(model, device)
    decoder.flat.normal_(0.0, 0.02)
    optimizer = optimizer_for(decoder, preset.inner, device.coarse_dtype, "fp32")
    num_sequences = options.step or preset.inner.sequences_per_step
    passes = Passes(device, model, num_sequences, options.sequences)
    compiler = Compiler(decoder, device, model, "on")
    gradients = Gradients(decoder, device, passes, lambda: None, None, compiler)
    random = np.random.default_rng(1)
    shape = (num_sequences, model.context + 1)
    sequences = random.integers(0, model.vocabulary, shape)

    started = time.perf_counter()
    gradients.take(sequences)
    gradients.drop()
    torch.cuda.synchronize()
    print(f"{preset.name}: first step {time.perf_counter() - started:.1f} s, {passes.present}")
    ready = wait_for_compiled(gradients, sequences, compiler)
    print(f"compiled and in use after {ready:.1f} s, of which eager steps went on", flush=True)
    parts = decoder.compiled

    def step(*, is_compiled: bool) -> None:
        decoder.compiled = parts if is_compiled else None
        gradients.take(sequences)
        optimizer.step(1e-5)
        gradients.drop()

    arms = [
        Arm("eager", lambda: step(is_compiled=False)),
        Arm("compiled", lambda: step(is_compiled=True)),
    ]
    if not options.no_plain:
        arms.append(Arm("plain", plain_step(model, device, sequences, options.plain_sequences)))
    deadline = time.perf_counter() + options.seconds
    while time.perf_counter() < deadline or len(arms[0].times) < 3:
        for arm in arms:
            arm.once()
    peak = peak_operations(device.name, device.precision) or float("nan")
    tokens = num_sequences * model.context
    for arm in arms:
        rate = tokens / arm.seconds
        mfu = rate * operations_of_token(model, twice=False) / peak
        print(
            f"| {preset.name} | {arm.name} | {arm.seconds:.3f} | {rate:,.0f} | {mfu:.1%} "
            f"| {arms[0].seconds / arm.seconds:.2f} | {arm.peak_bytes / GB:.1f} "
            f"| {len(arm.times)} |",
            flush=True,
        )
    measure_updates(preset, decoder, device, min(arm.seconds for arm in arms))


def plain_step(
    model: ModelConfig, device: Device, sequences: np.ndarray, micro_batch: int
) -> Callable[[], None]:
    with torch.device(device.torch_device):
        plain = Plain(model)
    for layer in plain.layers:
        layer.compile()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-5, fused=True)
    on_device = torch.from_numpy(sequences).to(device.torch_device)
    parts = torch.split(on_device, micro_batch)

    def step() -> None:
        for part in parts:
            with torch.autocast(device.torch_device.type, device.product_dtype):
                loss = plain(part[:, :-1], part[:, 1:]) * (len(part) / len(on_device))
            loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    started = time.perf_counter()
    step()
    torch.cuda.synchronize()
    print(f"plain: first step {time.perf_counter() - started:.1f} s", flush=True)
    return step


def measure_updates(
    preset: Preset, decoder: nn.Module, device: Device, step_seconds: float
) -> None:
    for parameter in decoder.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    for name in ("adamw", "muon"):
        inner = replace(preset.inner, optimizer=name)
        optimizer = optimizer_for(decoder, inner, device.coarse_dtype, "fp32")  # type: ignore[arg-type]
        arm = Arm(name, lambda optimizer=optimizer: optimizer.step(1e-9))  # type: ignore[misc]
        for _ in range(6):
            arm.once()
        share = arm.seconds / (step_seconds + arm.seconds)
        print(f"update {preset.name} {name}: {1e3 * arm.seconds:.1f} ms, {share:.2%} of a step")
        del optimizer
    for parameter in decoder.parameters():
        parameter.grad = None
    torch.cuda.empty_cache()


def measure_handover(preset: Preset, device: Device, folder: Path) -> None:
    """Times of the beginning, of the end and of a new state in mid-round."""
    run = preset
    model, inner = run.model, replace(run.inner, sequences_per_step=2)
    base = np.zeros(model.num_parameters, np.float32)
    work = np.zeros_like(base)
    shard = folder / "shard"
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, 40 * (model.context + 1))
    shard.write_bytes(zstandard.compress(tokens.astype("<u4").tobytes()))
    config = TrainerConfig(
        model=model, inner=inner, seed=1, token_bytes=4, device=str(device.torch_device)
    )
    trainer = LocalTrainer(config, base, work)
    base[:] = 0.01
    everything = ((0, model.num_parameters),)
    for number in range(3):
        trainer.push(number, str(shard), 0, len(tokens))
        begun = timed(lambda number=number: begin(trainer, number + 1, 0, 2, 1e9))  # type: ignore[misc]
        trainer.step()
        renewed = timed(lambda: trainer.rebase(everything))
        ended = timed(trainer.finish)
        trainer.forget()
        print(
            f"handover {run.name}, {model.num_parameters:,} parameters: begin {begun:.2f} s, "
            f"new state {renewed:.2f} s, end {ended:.2f} s",
            flush=True,
        )


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def main(arguments: Sequence[str] | None = None) -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--presets", nargs="+", choices=PRESETS, default=["150m", "1.1b"])
    parser.add_argument("--seconds", type=float, default=10.0, help="of each preset's turns")
    parser.add_argument("--step", type=int, help="sequences of a step, instead of the preset's")
    parser.add_argument("--sequences", type=int, default=0, help="of a pass, instead of what fits")
    parser.add_argument("--plain-sequences", type=int, default=16, help="of the plain loop's pass")
    parser.add_argument("--no-plain", action="store_true")
    parser.add_argument("--no-handover", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    options = parser.parse_args(arguments)
    device = choose_device(options.device)
    print(f"{device.name}, {device.precision}, torch {torch.__version__}", flush=True)
    for name in options.presets:
        inner = replace(PRESETS[name].inner, optimizer="adamw")  # the plain loop's
        measure_speed(replace(PRESETS[name], inner=inner), device, options)
        torch.compiler.reset()
        torch.cuda.empty_cache()
    if not options.no_handover:
        with tempfile.TemporaryDirectory() as folder:
            measure_handover(PRESETS[options.presets[-1]], device, Path(folder))


if __name__ == "__main__":
    main()
