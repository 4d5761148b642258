"""A graphics card that counts bytes: tensors on torch's `meta` device, which have no memory.

Every storage is counted from the operation that makes it until torch frees it. An operation that
would need more than the card has raises torch's error for that, in the forward and in the backward
pass. So a graph that something keeps alive takes room here as it does on a card.

Three functions stand for the kernels of a card: a product casts its inputs (autocast), attention is
torch's flash attention with a copy of keys and values for each query head, and the norm keeps its
input and one number of each row. Fragmentation, the driver's own memory and the workspaces of
libraries are not simulated.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gossamer.protocol.model_config import ModelConfig
from gossamer.trainer.model import Decoder
from gossamer.trainer.resources.device import Device

MESSAGE = "CUDA out of memory. Tried to allocate some."

aten = torch.ops.aten

_Form = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]

_known_results: dict[Any, tuple[bool, tuple[_Form, ...]]] = {}
"""Forms of the new tensors that an operation makes from inputs of given forms, and whether it
returns several. No forms where the operation has to be done each time. torch works a form out in
Python, which takes longer than all else that a simulated card does, and it is the same for every
card: some thousand are kept."""


@functools.cache
def _makes_no_fresh_tensor(func: Any) -> bool:
    """Whether an operation writes into an input or returns a view of one, by its own declaration.
    Such an operation is done each time, and needs no search for a known form."""
    schema = func._schema
    is_view = any(returned.alias_info is not None for returned in schema.returns)
    return bool(schema.is_mutable) or is_view


def _result_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation returns, without computing a form that was computed before.

    Only forms of fresh tensors are remembered: an operation whose result shares the storage of an
    input, or that writes into an input, is done each time.
    """
    if _makes_no_fresh_tensor(func):
        return func(*args, **kwargs)
    named = tuple([(name, _form(value)) for name, value in kwargs.items()]) if kwargs else ()
    key = (func, tuple([_form(value) for value in args]), named)
    try:
        known = _known_results.get(key)
    except TypeError:  # an argument without a hash
        return func(*args, **kwargs)
    if known is not None:
        is_several, forms = known
        if not forms:
            return func(*args, **kwargs)
        made = [torch.empty_strided(*form[:2], dtype=form[2], device=form[3]) for form in forms]
        return tuple(made) if is_several else made[0]
    result = func(*args, **kwargs)
    results, forms = result if isinstance(result, tuple) else (result,), ()
    if all(_is_on_card(one) for one in results):
        inputs = {_storage_of(one) for one in tree_leaves((args, kwargs)) if _is_on_card(one)}
        outputs = {_storage_of(one) for one in results}
        is_fresh = len(outputs) == len(results) and not outputs & inputs
        if is_fresh and all(one.storage_offset() == 0 for one in results):
            forms = tuple(_form(one) for one in results)
    _known_results[key] = isinstance(result, tuple), forms
    return result


def _form(value: Any) -> Any:
    """Shape, strides, type and device of a tensor; anything else is itself, with its type: 1, 1.0
    and True are equal, and make tensors of different types."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device
    if isinstance(value, (tuple, list)):
        return tuple([_form(one) for one in value])
    return type(value), value


def _is_on_card(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_meta


def _storage_of(tensor: torch.Tensor) -> int:
    number: int = tensor.untyped_storage()._cdata
    return number


class Memory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of living storages on the `meta` device."""

    def __init__(self, capacity_bytes: int, low: torch.dtype | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity_bytes = capacity_bytes
        self.residual_dtype = low or torch.float32
        self.live_bytes = self.peak_bytes = 0
        self.num_failures = 0
        self.error: Callable[[], Exception] = lambda: torch.OutOfMemoryError(MESSAGE)
        self._storages: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled on a simulated card, and torch takes some time in each operation to
        keep its compiler out of it."""
        return False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is aten._local_scalar_dense.default:
            return 1.0
        if func is aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            source = args[0]
            return torch.from_numpy(np.zeros(tuple(source.shape), np.float32))
        result = _result_of(func, args, kwargs)
        for tensor in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
            if _is_on_card(tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        if storage in self._storages:
            return
        num_bytes = storage.nbytes()
        if self.live_bytes + num_bytes > self.capacity_bytes:
            self.num_failures += 1
            raise self.error()
        self._storages.add(storage)
        self.live_bytes += num_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        weakref.finalize(storage, self._free, num_bytes)

    def _free(self, num_bytes: int) -> None:
        self.live_bytes -= num_bytes


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1]))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


def _kernels(low: torch.dtype | None) -> dict[str, Callable[..., torch.Tensor]]:
    """The functions of the card; `low` is the type of products, or None for fp32."""
    linear = F.linear

    def cast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors if low is None else tuple(tensor.to(low) for tensor in tensors)

    def rms_norm(
        x: torch.Tensor, _shape: Sequence[int], weight: torch.Tensor, _epsilon: float
    ) -> torch.Tensor:
        normed: torch.Tensor = _RMSNorm.apply(x, weight)  # type: ignore[no-untyped-call]
        return normed

    def attention(*tensors: torch.Tensor, **_: Any) -> torch.Tensor:
        query, key, value = cast(*tensors)
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (
                tensor[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2)
                for tensor in (key, value)
            )
        output: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, True
        )[0]
        return output

    return {
        "linear": lambda x, weight, bias=None: linear(*cast(x, weight)),
        "rms_norm": rms_norm,
        "scaled_dot_product_attention": attention,
    }


def _tolist(tensor: torch.Tensor) -> list[float]:
    return [1.0] * tensor.numel()


@dataclass(frozen=True)
class CardDevice(Device):
    """The card, as the trainer knows it."""

    memory: Memory

    def free_bytes(self) -> int | None:
        return self.memory.capacity_bytes - self.memory.live_bytes

    @property
    def residual_dtype(self) -> torch.dtype:
        return self.memory.residual_dtype

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()  # the card's own functions cast


def device_of(memory: Memory) -> CardDevice:
    return CardDevice(torch.device("meta"), "a card", "bf16", memory)


@contextmanager
def card(capacity_bytes: int, low: torch.dtype | None = torch.bfloat16) -> Iterator[Memory]:
    """A card with so much memory, for tensors that are made and used within the block."""
    memory = Memory(capacity_bytes, low)
    with ExitStack() as stack:
        stack.enter_context(memory)
        for name, kernel in _kernels(low).items():
            stack.enter_context(patch.object(F, name, kernel))
        stack.enter_context(patch.object(torch.Tensor, "tolist", _tolist))
        yield memory


def decoder_on(memory: Memory, model: ModelConfig) -> Decoder:
    """A model on the card. Its placeholders before it has weights, which have no memory anywhere,
    are not counted."""
    capacity_bytes, memory.capacity_bytes = memory.capacity_bytes, 1 << 60
    try:
        decoder = Decoder(model, "meta")
    finally:
        memory.capacity_bytes = capacity_bytes
    if memory.live_bytes > capacity_bytes:
        raise memory.error()
    decoder.residual_dtype = memory.residual_dtype
    return decoder


def sequences_of(model: ModelConfig, num_sequences: int) -> np.ndarray:
    return np.zeros((num_sequences, model.context + 1), np.int64)
