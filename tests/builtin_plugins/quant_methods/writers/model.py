"""Tiny models with quantized weights, and with the same weights dequantized.

Writers follow the published layouts and share no code with the readers.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from core.model_spec.parallel import ParallelGroup
from core.model_spec.quant_method import QuantMethod
from core.model_spec.weight_shard import WeightShard
from core.models.layers.decoder import Decoder
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import Session, plain_context, read_config
from tests.core.models.layers.test_tensor_parallel import Meeting, ThreadGroup

Tensors = dict[str, torch.Tensor]
Writer = Callable[[torch.Tensor], tuple[Tensors, torch.Tensor]]
"""Returns the tensors of a weight by suffix, and its dequantized float32 weight."""

CheckModel = Callable[..., None]
"""The fixture `check_model`: checks a model quantized by a writer and read by a method."""

MODULES = {
    "LlamaForCausalLM": "llama:spec",
    "Qwen3MoeForCausalLM": "qwen_moe:qwen3_moe",
    "Gemma3ForCausalLM": "gemma:gemma3",
    "DeepseekV3ForCausalLM": "deepseek:v3",
    "MixtralForCausalLM": "mistral:mixtral",
    "Phi3ForCausalLM": "phi3:phi3",
    "GptOssForCausalLM": "gpt_oss:spec",
}
LINEAR = re.compile(r"layers\.\d+\..*(_proj|_proj_with_mqa|\.w[123])\.weight$")
IDS = list(range(100, 133))


def is_linear(name: str) -> bool:
    return LINEAR.search(name) is not None


def quantize(
    tensors: Tensors, write: Writer, which: Callable[[str], bool] = is_linear
) -> tuple[Tensors, Tensors]:
    """Return a checkpoint's tensors with some weights quantized, and with those dequantized."""
    stored = {}
    plain = dict(tensors)
    for name, tensor in tensors.items():
        if not which(name):
            stored[name] = tensor
            continue
        stem = name.removesuffix(".weight")
        parts, plain[name] = write(tensor.float())
        stored |= {f"{stem}.{suffix}": part for suffix, part in parts.items()}
    return stored, plain


def plain_tensors(architecture: str, folder: Path, **overrides: Any) -> Tensors:
    make_checkpoint(architecture, folder, seed=5, **overrides)
    return {
        name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()
    }


def logprobs(
    architecture: str,
    folder: Path,
    tensors: Tensors,
    quant: QuantMethod | None = None,
    group: ParallelGroup | None = None,
    plain: QuantMethod | None = None,
) -> torch.Tensor:
    """Return log-probabilities after each of a few tokens."""
    torch.set_num_threads(1)
    decoder = build_model(architecture, folder, quant, group, plain)
    decoder.load_weights(tensors.items())
    return Session(decoder).step(IDS)


def build_model(
    architecture: str,
    folder: Path,
    quant: QuantMethod | None = None,
    group: ParallelGroup | None = None,
    plain: QuantMethod | None = None,
) -> Decoder:
    """Return a model without weights."""
    module, _, function = MODULES[architecture].partition(":")
    spec = getattr(importlib.import_module(f"builtin_plugins.models.{module}"), function)(
        read_config(folder)
    )
    context = plain_context(group)
    return Decoder(spec, replace(context, quant=quant or context.quant, plain=plain))


def logprobs_tp2(
    architecture: str, folder: Path, tensors: Tensors, make: Callable[[], QuantMethod]
) -> torch.Tensor:
    """Return what `logprobs` does, computed by two ranks."""
    meeting = Meeting(2)
    with ThreadPoolExecutor(2) as pool:
        groups = [ThreadGroup(2, rank, meeting) for rank in range(2)]
        first, second = pool.map(
            lambda group: logprobs(architecture, folder, tensors, make(), group), groups
        )
    assert torch.equal(first, second)
    return first


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert the bound of all formats: the cosine of log-probabilities, and equal argmax tokens."""
    cosine = torch.nn.functional.cosine_similarity(found, expected, dim=-1)
    assert float(cosine.min()) >= 0.9999
    assert float((found.argmax(-1) == expected.argmax(-1)).float().mean()) >= 0.99


def round_weight(
    weight: torch.Tensor,
    bits: int,
    group: int,
    *,
    symmetric: bool,
    order: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return unsigned codes [out, in], scales and zeros [out, groups], and the dequantized weight.

    `order`: the group of each column; None: groups are in order.
    """
    out, width = weight.shape
    size = width if group == -1 else group
    which = torch.arange(width) // size if order is None else order
    count = width // size
    top = 2**bits - 1
    scales = torch.empty(out, count)
    zeros = torch.empty(out, count, dtype=torch.long)
    for index in range(count):
        own = weight[:, which == index]
        low = own.amin(1).clamp(max=0)
        high = own.amax(1).clamp(min=0)
        if symmetric:
            scales[:, index] = torch.maximum(-low, high) / (top // 2 or 1)
            zeros[:, index] = (top + 1) // 2
        else:
            scales[:, index] = (high - low) / top
            zeros[:, index] = (-low / scales[:, index]).round().long().clamp(1, top)
    scales = scales.half()
    codes = (weight / scales.float()[:, which]).round().long() + zeros[:, which]
    codes = codes.clamp(0, top)
    return codes, scales, zeros, (codes - zeros[:, which]).float() * scales.float()[:, which]


def pack_words(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Return int32 words of numbers along the last axis, lowest bits first."""
    rows = []
    for row in numbers.reshape(-1, numbers.shape[-1]).tolist():
        stream = 0
        for index, number in enumerate(row):
            stream |= int(number) << (index * bits)
        count = -(-len(row) * bits // 32)
        rows.append([(stream >> (32 * index)) & 0xFFFFFFFF for index in range(count)])
    found = torch.tensor(rows, dtype=torch.int64)
    found = torch.where(found >= 2**31, found - 2**32, found).to(torch.int32)
    return found.reshape(*numbers.shape[:-1], -1)


def whole(out: int, width: int) -> WeightShard:
    """Return the shard of a rank that has the whole weight."""
    rows = slice(0, out)
    return WeightShard(
        pieces=((rows, rows),), columns_in=slice(0, width), out_features=out, in_features=width
    )
