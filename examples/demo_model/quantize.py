"""Round-to-nearest checkpoints of the demo model, int8 and int4, as compressed-tensors and as GPTQ
lay them out.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

LAYOUTS: Final = ("compressed-tensors", "gptq")
GROUP: Final = 32
"""Weights along the input that share a scale."""
_COPIED: Final = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
_PROJECTIONS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantize(source: Path, target: Path, layout: str, bits: int) -> None:
    """Write the model of `source` with the matrices of its layers in `bits` bits; embedding and
    norms stay.
    """
    tensors: dict[str, Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        if not is_quantized(name):
            tensors[name] = weight
            continue
        stem = name.removesuffix(".weight")
        levels, scales = rounded(weight.float(), bits)
        packed = (
            _compressed(levels, scales, bits)
            if layout == "compressed-tensors"
            else _gptq(levels, scales, bits)
        )
        tensors.update({f"{stem}.{part}": tensor for part, tensor in packed.items()})
    target.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    config: dict[str, Any] = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = (
        _compressed_config(bits) if layout == "compressed-tensors" else _gptq_config(bits)
    )
    copy_settings(source, target, config)


def is_quantized(name: str) -> bool:
    """Return whether a tensor of the plain checkpoint is quantized."""
    return name.split(".")[-2] in _PROJECTIONS


def rounded(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Return the nearest levels, from -2^(bits-1), and the scales. weight: [out, in]; scales: [out,
    groups]
    """
    grouped = weight.view(weight.shape[0], -1, GROUP)
    highest = 2 ** (bits - 1) - 1
    scales = (grouped.abs().amax(dim=-1) / highest).clamp_min(1e-8).half()
    levels = (grouped / scales.float().unsqueeze(-1)).round().clamp(-highest - 1, highest)
    return levels.view_as(weight).to(torch.int32), scales


def dequantized(folder: Path) -> dict[str, Tensor]:
    """Return the plain bfloat16 weights of a checkpoint in either layout."""
    method = json.loads((folder / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    tensors = load_file(folder / "model.safetensors")
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, _, part = name.rpartition(".")
        if part == "weight":
            plain[name] = tensor
        elif part == "weight_packed":
            bits = method["config_groups"]["group_0"]["weights"]["num_bits"]
            levels = _unpacked(tensor, bits)
            scales = tensors[f"{stem}.weight_scale"]
            plain[f"{stem}.weight"] = _scaled(levels, scales)
        elif part == "qweight":
            levels = _unpacked(tensor.T.contiguous(), method["bits"])
            scales = tensors[f"{stem}.scales"].T
            plain[f"{stem}.weight"] = _scaled(levels, scales)
    return plain


def plain_checkpoint(quantized: Path, target: Path) -> None:
    """Write the dequantized weights of a quantized checkpoint as a plain one."""
    target.mkdir(parents=True, exist_ok=True)
    save_file(dequantized(quantized), target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((quantized / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    copy_settings(quantized, target, config)


def copy_settings(source: Path, target: Path, config: dict[str, Any] | None = None) -> None:
    """Copy everything except the weights to another checkpoint, with an optional new config."""
    for name in _COPIED:
        shutil.copyfile(source / name, target / name)
    if config is None:
        shutil.copyfile(source / "config.json", target / "config.json")
    else:
        (target / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _scaled(levels: Tensor, scales: Tensor) -> Tensor:
    grouped = levels.view(levels.shape[0], -1, GROUP).float() * scales.float().unsqueeze(-1)
    return grouped.view_as(levels).bfloat16()


def _packed(levels: Tensor, bits: int) -> Tensor:
    """Return levels shifted to be positive, 32 bits of them in each int32 of a row, lowest bits
    first.
    """
    per_word = 32 // bits
    shifted = (levels.long() + 2 ** (bits - 1)).view(levels.shape[0], -1, per_word)
    words = (shifted << (torch.arange(per_word) * bits)).sum(dim=-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    shifted = (words.long().unsqueeze(-1) >> (torch.arange(32 // bits) * bits)) & (2**bits - 1)
    levels: Tensor = (shifted - 2 ** (bits - 1)).view(words.shape[0], -1)
    return levels


def _compressed(levels: Tensor, scales: Tensor, bits: int) -> dict[str, Tensor]:
    return {
        "weight_packed": _packed(levels, bits),
        "weight_scale": scales.contiguous(),
        "weight_shape": torch.tensor(levels.shape, dtype=torch.int64),
    }


def _gptq(levels: Tensor, scales: Tensor, bits: int) -> dict[str, Tensor]:
    groups = scales.shape[1]
    # The layout stores zero points minus one, packed along the output.
    zeros = torch.full((groups, levels.shape[0]), -1, dtype=torch.int32)
    return {
        "qweight": _packed(levels.contiguous(), bits).T.contiguous(),
        "qzeros": _packed(zeros, bits),
        "scales": scales.T.contiguous(),
        "g_idx": torch.arange(levels.shape[1], dtype=torch.int32) // GROUP,
    }


def _compressed_config(bits: int) -> dict[str, Any]:
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": True,
        "strategy": "group",
        "group_size": GROUP,
        "dynamic": False,
        "actorder": None,
        "observer": "minmax",
    }
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


def _gptq_config(bits: int) -> dict[str, Any]:
    return {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": GROUP,
        "desc_act": False,
        "sym": True,
        "lm_head": False,
        "true_sequential": True,
        "checkpoint_format": "gptq",
    }
