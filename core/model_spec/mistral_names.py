"""Tensor names of Mistral's own format, by those of Hugging Face's layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PARTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attention.wq": "self_attn.q_proj",
        "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
        "attention.wq_a": "self_attn.q_a_proj",
        "attention.q_a_norm": "self_attn.q_a_layernorm",
        "attention.wq_b": "self_attn.q_b_proj",
        "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa",
        "attention.kv_a_norm": "self_attn.kv_a_layernorm",
        "attention.wkv_b": "self_attn.kv_b_proj",
        "gate": "mlp.gate",
    }
)
"""Parts of a layer, without its MLPs."""
MLPS: Final[Mapping[str, str]] = MappingProxyType(
    {"feed_forward": "mlp", "shared_experts": "mlp.shared_experts"}
)
MATRICES: Final[Mapping[str, str]] = MappingProxyType(
    {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
)
"""Matrices of an MLP or of an expert."""
ENDS: Final[Mapping[str, str]] = MappingProxyType(
    {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
)
"""What is no part of a layer."""
_FURTHER: Final = {
    "experts": "mlp.experts",
    "attention.indexer": "self_attn.indexer",
    "attention.ssmax_scaling": "self_attn.softmax_scaling",
}
RENAMES: Final = (
    *((rf"^{theirs}\.", f"{here}.") for theirs, here in ENDS.items()),
    *(
        (rf"^layers\.(\d+)\.{re.escape(theirs)}\.", rf"model.layers.\1.{here}.")
        for theirs, here in {**PARTS, **MLPS, **_FURTHER}.items()
    ),
    *((rf"(\.mlp\..*){theirs}\.", rf"\1{here}.") for theirs, here in MATRICES.items()),
    (r"^lerope\.", "model.rotary_emb."),
    (r"\.ssmax_scaling\.", ".softmax_scaling."),
    (r"\.softmax_scaling\.s$", ".softmax_scaling.scale"),
    (r"\.softmax_scaling\.b$", ".softmax_scaling.bias"),
)
"""Renames to Hugging Face's layout (`WeightNames.rename`), Mistral Large 4's names among them."""
