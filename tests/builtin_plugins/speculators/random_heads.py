"""Random heads for tiny models, with the tensor names of published ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file

from core import LLM
from core.testing.checkpoints import VOCAB
from tests.builtin_plugins.speculators.large_batch import BASE

HIDDEN = 64
WIDE = 96
INNER = 48
FEWER = 50
"""Vocabulary size of a head with a subset of the target's tokens."""
LAYER = {
    "self_attn.q_proj.weight": (64, HIDDEN),
    "self_attn.k_proj.weight": (32, HIDDEN),
    "self_attn.v_proj.weight": (32, HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, 64),
    "mlp.gate_proj.weight": (WIDE, HIDDEN),
    "mlp.up_proj.weight": (WIDE, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, WIDE),
    "post_attention_layernorm.weight": (HIDDEN,),
}
CONFIG = {
    "architectures": ["AnyHead"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": 512,
}
MLP_CONFIG = {
    "n_predict": 3,
    "vocab_size": VOCAB,
    "emb_dim": HIDDEN,
    "inner_dim": INNER,
    "scale_input": True,
}


class Head(NamedTuple):
    """A checkpoint."""

    method: str
    folder: Path
    tensors: Mapping[str, torch.Tensor]


def _with_double_input(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 2 * HIDDEN) if name.split(".")[1][:1] in "qkv" and "attn" in name else shape


EAGLE = {
    "fc.weight": (HIDDEN, 2 * HIDDEN),
    **{f"layers.0.{name}": shape for name, shape in LAYER.items()},
}
EAGLE3 = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "norm.weight": (HIDDEN,),
    "midlayer.input_layernorm.weight": (HIDDEN,),
    "midlayer.hidden_norm.weight": (HIDDEN,),
    "lm_head.weight": (FEWER, HIDDEN),
    **{f"midlayer.{name}": _with_double_input(name, shape) for name, shape in LAYER.items()},
}
MEDUSA = {
    **{f"{i}.0.linear.weight": (HIDDEN, HIDDEN) for i in range(3)},
    **{f"{i}.0.linear.bias": (HIDDEN,) for i in range(3)},
    **{f"{i}.1.weight": (VOCAB, HIDDEN) for i in range(3)},
}


def _mlp_shapes(*, tied: bool) -> dict[str, tuple[int, ...]]:
    steps, products = (1, 2) if tied else (3, 3)
    named = {f"proj.{i}.weight": (INNER, INNER if i else HIDDEN) for i in range(products)}
    for i in range(steps):
        named |= {f"emb.{i}.weight": (VOCAB, INNER), f"head.{i}.weight": (VOCAB, INNER)}
        named |= {f"ln.{i}.weight": (INNER,), f"ln.{i}.bias": (INNER,)}
    return {f"speculator.{name}": shape for name, shape in named.items()}


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Return random tensors of these shapes; norm weights are near 1."""
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.randn(shape, generator=generator) * 0.2
        + (len(shape) == 1 and ("norm" in name or "ln" in name))
        for name, shape in shapes.items()
    }


def write_head(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_heads(root: Path) -> Mapping[str, Head]:
    """Write a head of each method, for targets of three or more layers. Return them by name."""
    distances = torch.arange(FEWER) % 3 + torch.arange(FEWER)  # to every second token or so
    third = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": CONFIG,
        "draft_vocab_size": FEWER,
    }
    made: dict[str, tuple[str, Mapping[str, Any], Mapping[str, torch.Tensor]]] = {
        "eagle": ("eagle", CONFIG, random_tensors(EAGLE)),
        "eagle3": ("eagle3", CONFIG, {**random_tensors(EAGLE3), "d2t": distances}),
        "speculators": (
            "",
            {"speculators_config": {"algorithm": "eagle3"}, **third},
            {**random_tensors(EAGLE3), "d2t": distances},
        ),
        "medusa": (
            "medusa",
            {"model_type": "medusa", "medusa_num_heads": 3},
            random_tensors(MEDUSA),
        ),
        "mlp_speculator": (
            "mlp_speculator",
            {"model_type": "mlp_speculator", **MLP_CONFIG},
            random_tensors(_mlp_shapes(tied=False)),
        ),
        "tied": (
            "mlp_speculator",
            {**MLP_CONFIG, "tie_weights": True},
            random_tensors(_mlp_shapes(tied=True)),
        ),
    }
    return {
        name: Head(method, write_head(root / name, config, tensors), tensors)
        for name, (method, config, tensors) in made.items()
    }


MTP: Mapping[str, Mapping[str, Any]] = {
    "DeepseekV3ForCausalLM": {"num_nextn_predict_layers": 1},
    "DeepseekV32ForCausalLM": {"num_nextn_predict_layers": 1},
    "Glm4MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "Qwen3NextForCausalLM": {},
    "Ernie4_5_MoeForCausalLM": {"num_nextn_predict_layers": 1},
    "MiMoForCausalLM": {"num_nextn_predict_layers": 1, "architectures": ["MiMoForCausalLM"]},
}
"""Architectures with an MTP layer, and the config.json fields that enable it."""


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def add_mtp_layer(folder: Path, architecture: str) -> None:
    """Add the MTP layer of its architecture to a checkpoint."""
    change_config(folder, **MTP[architecture])
    shapes: dict[str, tuple[int, ...]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "builtin_plugins.speculators.heads.HeadSpeculator._load_weights",
            lambda self, weights, *_: shapes.update(weights.shapes()),
        )
        with LLM(str(folder), speculative_config={"method": "mtp"}, **BASE):
            pass
    file = folder / "model.safetensors"
    save_file({**load_file(file), **random_tensors(shapes)}, file, metadata={"format": "pt"})
