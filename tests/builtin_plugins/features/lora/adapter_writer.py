"""Writes random PEFT adapters for any checkpoint, and checkpoints with an adapter merged."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NOT_LINEAR = re.compile(r"embed|wte|wpe|conv1d|A_log|norm|\.positions")


def linear_modules(tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the linear layers of a checkpoint, including head and experts."""
    return [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if tensor.ndim == 2 and name.endswith(".weight") and not NOT_LINEAR.search(name)
    ]


def transposed(name: str) -> bool:
    """GPT-2 stores weights as [in, out]."""
    return bool(re.search(r"\.h\.\d+\.(attn|mlp)\.", name))


def make_adapter(
    model: Path,
    folder: Path,
    rank: int,
    *,
    seed: int = 0,
    only: str = "",
    size: float = 0.5,
    **config: Any,
) -> Path:
    """Write an adapter of all linear layers, or those that `only` matches; return its folder."""
    tensors = load_file(model / "model.safetensors")
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    made: dict[str, torch.Tensor] = {}
    modules = [name for name in linear_modules(tensors) if re.search(only, name)]
    for name in modules:
        out, inner = tensors[f"{name}.weight"].shape[:: -1 if transposed(name) else 1]
        own = rank_of(config, name, rank)
        made[f"base_model.model.{name}.lora_A.weight"] = random(own, inner) / inner**0.5
        made[f"base_model.model.{name}.lora_B.weight"] = random(out, own) * size / own**0.5
    for name, tensor in tensors.items():
        # As in gpt-oss: [experts, in, out]
        if tensor.ndim == 3 and "experts" in name and re.search(only, name):
            count, inner, out = tensor.shape
            made[f"base_model.model.{name}.lora_A.weight"] = random(count, rank, inner) / inner**0.5
            made[f"base_model.model.{name}.lora_B.weight"] = (
                random(count, out, rank) * size / rank**0.5
            )
    stated = {
        "peft_type": "LORA",
        "base_model_name_or_path": str(model),
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        **config,
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(made, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(stated))
    return folder


def rank_of(config: dict[str, Any], module: str, rank: int) -> int:
    for key, value in config.get("rank_pattern", {}).items():
        if re.search(rf"(^|\.){key}$", module):
            return int(value)
    return rank


def scale_of(config: dict[str, Any], module: str) -> float:
    """Return a module's scale, computed independently of the code under test."""
    alpha = config["lora_alpha"]
    rank = rank_of(config, module, config["r"])
    for key, value in config.get("alpha_pattern", {}).items():
        if re.search(rf"(^|\.){key}$", module):
            alpha = value
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def merge(model: Path, adapter: Path, folder: Path) -> Path:
    """Write the checkpoint with the adapter merged; return its folder."""
    shutil.copytree(model, folder)
    tensors = load_file(model / "model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    made = load_file(adapter / "adapter_model.safetensors")
    for key, a in made.items():
        name, found, _ = key.removeprefix("base_model.model.").partition(".lora_A.weight")
        if not found:
            continue
        delta = made[key.replace("lora_A", "lora_B")] @ a * scale_of(config, name)
        if name in tensors:
            tensors[name] = (tensors[name] + delta.transpose(-1, -2)).contiguous()
        else:
            weight = tensors[f"{name}.weight"]
            tensors[f"{name}.weight"] = (
                weight + (delta.T if transposed(name) else delta)
            ).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
