"""Llama with another residual stream: Arctic, Ouro and Solar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import torch

from core.testing.published import references
from core.testing.published.layout import HIDDEN, VOCAB, Published, Tensors, unstack_experts
from core.testing.published.references import EXPERTS

_SHAPE: Final[Mapping[str, Any]] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_MIXED: Final = {3: 1, 4: 2, 5: 4}
"""Layers that mix the input of an earlier layer into theirs."""


def _as_arctic(tensors: Tensors) -> None:
    unstack_experts(tensors, ("w1", "w3", "w2"))


def _as_ouro(tensors: Tensors) -> None:
    """Leave out the later loops, which have no weights, and add the gate that ends a loop early."""
    for name in list(tensors):
        found = re.match(r"model\.layers\.(\d+)\.", name)
        if found is not None and int(found[1]) >= _SHAPE["num_hidden_layers"]:
            del tensors[name]
    tensors["model.early_exit_gate.weight"] = torch.ones(1, HIDDEN)
    tensors["model.early_exit_gate.bias"] = torch.zeros(1)


STREAMS: Final[Mapping[str, Published]] = {
    "ArcticForCausalLM": Published(
        "Snowflake/snowflake-arctic-instruct",
        references.llama_as_arctic,
        {
            **_SHAPE,
            "model_type": "arctic",
            "intermediate_size": EXPERTS["moe_intermediate_size"],
            "num_local_experts": EXPERTS["num_experts"],
            "num_experts_per_tok": EXPERTS["num_experts_per_tok"],
            "moe_layer_frequency": 1,
            "parallel_attn_mlp_res": True,
            "use_residual": True,
        },
        (
            (r"\.mlp\.gate_proj", ".residual_mlp.w1"),
            (r"\.mlp\.up_proj", ".residual_mlp.w3"),
            (r"\.mlp\.down_proj", ".residual_mlp.w2"),
        ),
        _as_arctic,
    ),
    "OuroForCausalLM": Published(
        "ByteDance/Ouro-1.4B",
        partial(references.llama_in_loops, 2),
        {**_SHAPE, "model_type": "ouro", "total_ut_steps": 2, "early_exit_threshold": 1.0},
        (
            (r"self_attn\.norm\.", "input_layernorm_2."),
            (r"mlp\.norm\.", "post_attention_layernorm_2."),
            (r"\.inner\.", "."),
        ),
        _as_ouro,
    ),
    "SolarForCausalLM": Published(
        "upstage/solar-pro-preview-instruct",
        partial(references.llama_with_mixed_streams, _MIXED, 0.8),
        {
            **_SHAPE,
            "model_type": "solar",
            "num_hidden_layers": 6,
            "bskcn_1": [1, 4],
            "bskcn_2": [2],
            "bskcn_3": [3, 5],
            "bskcn_4": [4],
            "bskcn_tv": [0.9, 0.8],
        },
    ),
}
"""Architecture to its layout."""
