"""The logits of a model in a GGUF file, computed as llama.cpp reads it: only from what the `gguf`
package finds in the file, and without any code of the exporter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

NEIGHBOURS = ("llama",)
"""Architectures whose rotary positions turn neighbours; the others turn the halves of a head."""


class GgufModel:
    """A file and its forward pass in fp32."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self.fields: dict[str, Any] = {
            key: field.contents() for key, field in reader.fields.items()
        }
        self.types = {tensor.name: tensor.tensor_type for tensor in reader.tensors}
        self.tensors = {
            tensor.name: torch.from_numpy(
                np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
            )
            for tensor in reader.tensors
        }
        self.architecture = self.fields["general.architecture"]

    def of(self, key: str) -> Any:
        return self.fields[f"{self.architecture}.{key}"]

    def logits(self, tokens: Tensor) -> Tensor:
        """tokens: (T,) -> (T, V)"""
        x = self.tensors["token_embd.weight"][tokens]
        for layer in range(self.of("block_count")):
            own = {
                name.removeprefix(f"blk.{layer}."): values
                for name, values in self.tensors.items()
                if name.startswith(f"blk.{layer}.")
            }
            attended = self._attention(self._norm(x, own.get("attn_norm.weight")), own)
            x = x + self._norm(attended, own.get("post_attention_norm.weight"))
            inner = self._norm(x, own.get("ffn_norm.weight"))
            gate, up = inner @ own["ffn_gate.weight"].T, inner @ own["ffn_up.weight"].T
            down = (F.silu(gate) * up) @ own["ffn_down.weight"].T
            x = x + self._norm(down, own.get("post_ffw_norm.weight"))
        head = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return self._norm(x, self.tensors["output_norm.weight"]) @ head.T

    def _norm(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """RMSNorm over the gain's width, or nothing where the file has no gain."""
        if gain is None:
            return x
        epsilon = self.of("attention.layer_norm_rms_epsilon")
        groups = x.reshape(*x.shape[:-1], -1, len(gain))
        scaled = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + epsilon)
        return (scaled * gain).reshape(x.shape)

    def _attention(self, x: Tensor, own: dict[str, Tensor]) -> Tensor:
        heads = {"q": self.of("attention.head_count"), "k": self.of("attention.head_count_kv")}
        heads["v"] = heads["k"]
        made = {}
        for name, number in heads.items():
            values = x @ own[f"attn_{name}.weight"].T + own.get(f"attn_{name}.bias", 0)
            values = self._norm(values, own.get(f"attn_{name}_norm.weight"))
            made[name] = values.reshape(len(x), number, -1).transpose(0, 1)  # (heads, T, D)
        q, k = (self._rotated(made[name]) for name in "qk")
        k, v = (each.repeat_interleave(heads["q"] // heads["k"], 0) for each in (k, made["v"]))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(0, 1).reshape(len(x), -1) @ own["attn_output.weight"].T

    def _rotated(self, x: Tensor) -> Tensor:
        """(heads, T, D) -> the same"""
        width = self.of("rope.dimension_count")
        assert width == x.shape[-1] == self.of("attention.key_length")
        frequencies = self.of("rope.freq_base") ** -(torch.arange(0, width, 2) / width)
        frequencies = frequencies / self.tensors.get("rope_freqs.weight", torch.ones(1))
        angles = torch.outer(torch.arange(x.shape[1]).float(), frequencies)
        cosines, sines = angles.cos(), angles.sin()
        if self.architecture in NEIGHBOURS:
            first, second = x[..., 0::2], x[..., 1::2]
            turned = (first * cosines - second * sines, first * sines + second * cosines)
            return torch.stack(turned, -1).reshape(x.shape)
        first, second = x.chunk(2, -1)
        return torch.cat((first * cosines - second * sines, first * sines + second * cosines), -1)
