"""A tiny model of transformers, written in the layout of another architecture.

The model computes what the architecture computes, so it is the truth for a checkpoint in that
layout: config fields and tensor names of the checkpoints that its authors published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

VOCAB: Final = 300
HIDDEN: Final = 64
SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": None,
}
"""Fields of the reference's config."""
ENDS: Final = {"bos_token_id": VOCAB - 3, "eos_token_id": VOCAB - 1}

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Published:
    """One architecture: its reference, and how its checkpoints are laid out."""

    source: str
    """Published checkpoint with this config and these tensor names."""
    make: Callable[[], Any]
    """Makes the reference."""
    config: Mapping[str, Any]
    """config.json, without `architectures`."""
    names: tuple[tuple[str, str], ...] = ()
    """Regular expressions and replacements from the reference's tensor names to published ones."""
    convert: Callable[[Tensors], None] = field(default=lambda tensors: None)
    """Fuses, splits or adds tensors, by published names."""

    def write(self, architecture: str, model: Any, folder: Path) -> None:
        """Write config.json and the weights of a reference."""
        tensors = {self._name(name): tensor for name, tensor in model.state_dict().items()}
        if model.config.tie_word_embeddings:
            tensors = {name: tensor for name, tensor in tensors.items() if "lm_head" not in name}
        self.convert(tensors)
        folder.mkdir(parents=True, exist_ok=True)
        whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(whole, folder / "model.safetensors", {"format": "pt"})
        stated = {"architectures": [architecture], **ENDS, **self.config}
        (folder / "config.json").write_text(json.dumps(stated))

    def _name(self, name: str) -> str:
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name


def take(tensors: Tensors, pattern: str) -> list[tuple[re.Match[str], torch.Tensor]]:
    """Remove the tensors with matching names; return them with their matches."""
    found = [match for name in tensors if (match := re.fullmatch(pattern, name))]
    return [(match, tensors.pop(match[0])) for match in found]


def fuse(tensors: Tensors, parts: tuple[str, ...], whole: str, *, groups: int = 1) -> None:
    """Join tensors of each layer along their rows, in `groups`: the first of each part comes first.

    `parts` and `whole` are suffixes of names.
    """
    for suffix in (".weight", ".bias"):
        for match, _ in [
            (re.fullmatch(rf"(.*\.){re.escape(parts[0] + suffix)}", name), name)
            for name in list(tensors)
        ]:
            if match is None:
                continue
            pieces = [tensors.pop(f"{match[1]}{part}{suffix}") for part in parts]
            chunks = [piece.chunk(groups) for piece in pieces]
            tensors[f"{match[1]}{whole}{suffix}"] = torch.cat(
                [chunk[group] for group in range(groups) for chunk in chunks]
            )


def unstack_experts(tensors: Tensors, names: tuple[str, str, str]) -> None:
    """Split stacked experts into one tensor per expert and product: gate, up and down."""
    gate, up, down = names
    for match, stacked in take(tensors, r"(.*\.experts)\.gate_up_proj"):
        for index, expert in enumerate(stacked):
            first, second = expert.chunk(2)
            tensors[f"{match[1]}.{index}.{gate}.weight"] = first
            tensors[f"{match[1]}.{index}.{up}.weight"] = second
    for match, stacked in take(tensors, r"(.*\.experts)\.down_proj"):
        for index, expert in enumerate(stacked):
            tensors[f"{match[1]}.{index}.{down}.weight"] = expert
