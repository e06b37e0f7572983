"""Random changes of the tiny config of any architecture: head counts, sizes, windows, rotary
scaling, switches, and factors.

Fields are known by what their names have in common, so types that are in no list are drawn too.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping
from typing import Any, Final

from transformers import PreTrainedConfig

from core.testing.checkpoints import tiny_config

Changes = dict[str, Any]

_UNUSED: Final = re.compile(
    "drop|jitter|aux_loss|init|_std|z_loss|use_cache|output_|is_decoder|is_encoder|"
    "share_encoder|cross_attention|gradient|token_id|_tp$|return_|torch|attn_impl|"
    "type_vocab|num_labels|problem|summary|chunk_size|kernels|time_step|_fp32|fused|"
    "norm_before_gate|mtp|nextn|vision|image|audio|tokenizer_class|prenorm|expand$|"
    "^mode$|single_step|weight_mode|act_bits|bidirectional|is_causal"
)
"""Names of fields that training reads, or the code around a model."""
_TIED: Final = frozenset(("big_bird", "megatron-bert", "zamba", "zamba2"))
"""Types with further weights that transformers shares only if the head is tied."""
_COUNTS: Final = (
    (
        r"intermediate_size|ffn_dim|ffn_hidden|^n_inner$|expert_ffn|^dff$|^d_ff$|mlp_hidden",
        (40, 56, 72),
    ),
    (r"sliding_window|window_size|attention_chunk_size|^local_attention$", (5, 7, 17, 33)),
    (r"experts_per_tok|moe_topk|moe_k$|top_k_experts|moe_top_k", (1, 2, 3)),
    (r"shared_experts$", (1, 3)),
    (r"first_k_dense|num_dense_layers|layer_start_index", (0, 1, 2)),
    (r"conv_kernel|d_conv|conv_l_cache|conv1d_width", (2, 3, 4)),
    (r"state_size|d_state", (8, 16, 24)),
    (r"layer_freq|sparse_step|_interval$", (1, 2, 3)),
    (r"max_window_layers", (0, 1, 2)),
    (r"^(encoder|decoder|num|num_decoder)_layers$", (1, 2, 3)),
    (r"^(encoder|decoder)_attention_heads$", (2, 4, 8)),
    (r"^d_kv$", (8, 24)),
    (r"attention_num_buckets", (6, 8, 32)),
    (r"attention_max_distance", (20, 40)),
)
_NONE_TOO: Final = re.compile("sliding_window$|q_lora_rank|softcapping|soft_cap$|n_inner|clip_qkv")
"""Fields that may be null."""
_HEADS: Final = ((4, 1), (4, 4), (6, 2), (6, 3), (2, 2), (8, 2), (3, 1))
"""Query heads and key-value heads."""
_ACTIVATIONS: Final = ("silu", "gelu", "relu", "gelu_pytorch_tanh")


def draw_changes(architecture: str, draw: random.Random) -> list[Changes]:
    """Return groups of fields that change the tiny config of an architecture.

    Each group can be left out of the others.
    """
    config = tiny_config(architecture)
    names = _own_fields(type(config))
    stated = {name: config.to_dict().get(name) for name in names}
    groups = [*_heads(stated, draw), *_layers(stated, draw), *_rope(config, stated, draw)]
    taken = {name for group in groups for name in group}
    for name, value in stated.items():
        if name in taken or _UNUSED.search(name):
            continue
        if name == "tie_word_embeddings" and config.model_type in _TIED:
            continue
        if name == "vocab_size" and "vocab_size_per_layer_input" not in stated:
            groups.append({name: draw.choice((300, 301, 331))})
        elif draw.random() < 0.4:
            groups += [{name: new} for new in _other_value(name, value, draw)]
    draw.shuffle(groups)
    return groups


def merge(groups: list[Changes]) -> Changes:
    """Return all fields of some groups."""
    return {name: value for group in groups for name, value in group.items()}


def _own_fields(config_class: type) -> list[str]:
    """Return the fields that a config class adds to those of every config."""
    common = {field.name for field in dataclasses.fields(PreTrainedConfig)}
    known = {field.name for field in dataclasses.fields(config_class) if field.init}
    return sorted(known - common | {"tie_word_embeddings"} & known)


def _other_value(name: str, value: Any, draw: random.Random) -> list[Any]:
    """Return another value of one field; none for a field of unknown meaning."""
    low = name.lower()
    if _NONE_TOO.search(low) and (value is None or draw.random() < 0.3):
        if "cap" in low or low == "clip_qkv":
            return [draw.choice((3.0, 7.0)) if value is None else None]
        return [] if value is None else [None]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        found = [sizes for pattern, sizes in _COUNTS if re.search(pattern, low)]
        return [draw.choice(found[0])] if found else []
    if isinstance(value, float):
        if "eps" in low:
            return [draw.choice((1e-6, 1e-4, 1e-3))]
        return [round(value * draw.choice((0.5, 0.8, 1.25, 1.6)), 4)]
    if isinstance(value, str) and re.search("hidden_act|activation", low):
        return [draw.choice(_ACTIVATIONS)]
    return []


def _first(stated: Mapping[str, Any], names: str) -> str | None:
    return next((n for n in names.split() if isinstance(stated.get(n), int)), None)


def _heads(stated: Mapping[str, Any], draw: random.Random) -> list[Changes]:
    """Return other numbers and sizes of heads."""
    heads = _first(stated, "num_attention_heads n_head n_heads num_heads")
    if heads is None:
        return []
    groups: list[Changes] = []
    kv = _first(stated, "num_key_value_heads num_kv_heads")
    number, kv_number = draw.choice(_HEADS)
    size = draw.choice((8, 12, 16, 20, 24, 32))
    changed: Changes = {heads: number}
    if "kv_lora_rank" in stated:
        number = draw.choice((2, 3, 4, 6))
        changed = {heads: number, **({kv: number} if kv else {})}
        groups += _latent_sizes(stated, draw)
    else:
        if kv:
            changed[kv] = kv_number
        hidden = _first(stated, "hidden_size n_embd d_model dim")
        head_size = _first(stated, "head_dim")
        sections = (stated.get("rope_parameters") or {}).get("mrope_section")
        if head_size is not None and not sections:
            groups.append({head_size: size})
        elif head_size is None and hidden is not None:
            changed[hidden] = number * size
    if draw.random() < 0.7:
        groups.append(changed)
    keys = _first(stated, "linear_num_key_heads")
    if keys:
        number = draw.choice((1, 2, 3))
        times = draw.choice((1, 2))
        groups.append({keys: number, "linear_num_value_heads": number * times})
        groups.append({"linear_key_head_dim": draw.choice((8, 24))})
        groups.append({"linear_value_head_dim": draw.choice((8, 32))})
    return groups


def _latent_sizes(stated: Mapping[str, Any], draw: random.Random) -> list[Changes]:
    """Return other sizes of latent attention."""
    shared = draw.choice((4, 8, 16))
    sized: Changes = {"qk_rope_head_dim": shared}
    if stated.get("head_dim") == stated.get("qk_rope_head_dim"):
        sized["head_dim"] = shared
    groups = [
        sized,
        {"kv_lora_rank": draw.choice((12, 24, 40))},
        {"qk_nope_head_dim": draw.choice((8, 12, 24))},
        {"v_head_dim": draw.choice((8, 12, 20))},
    ]
    if "q_lora_rank" in stated:
        groups.append({"q_lora_rank": draw.choice((None, 16, 24, 40))})
    return [group for group in groups if draw.random() < 0.6 and set(group) <= set(stated)]


def _layers(stated: Mapping[str, Any], draw: random.Random) -> list[Changes]:
    """Return another number of layers, and other lists with a value for each."""
    name = _first(stated, "num_hidden_layers n_layer n_layers")
    if name is None:
        return []
    count = stated[name]
    lists = {
        each: value
        for each, value in stated.items()
        if isinstance(value, (list, tuple)) and len(value) == count and len(set(map(str, value)))
    }
    if any("index" in each for each in lists):
        return []  # shared selections need an earlier layer
    number = draw.choice((1, 2, 3, 5)) if not lists else draw.choice((2, 3, 5))
    changed: Changes = {name: number}
    for each, value in lists.items():
        kinds = sorted(set(value), key=str)
        drawn = [draw.choice(kinds) for _ in range(number)]
        drawn[draw.randrange(number)] = kinds[-1]
        drawn[draw.randrange(number)] = kinds[0]
        changed[each] = drawn
    return [changed] if draw.random() < 0.7 else []


def _rope(config: Any, stated: Mapping[str, Any], draw: random.Random) -> list[Changes]:
    """Return other rotary parameters."""
    given = stated.get("rope_parameters")
    if not isinstance(given, Mapping) or draw.random() < 0.3:
        return []
    if any(isinstance(value, Mapping) for value in given.values()):
        changed = {
            each: {**value, "rope_theta": draw.choice((500.0, 1e5))}
            for each, value in given.items()
            if isinstance(value, Mapping)
        }
        return [{"rope_parameters": changed}]
    extra = {
        key: value
        for key, value in given.items()
        if key in ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
    }
    theta = draw.choice((500.0, 10_000.0, 1e6))
    scalings: list[Changes] = [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": draw.choice((2.0, 3.5))},
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": draw.choice((32, 64)),
            **draw.choice([{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"attention_factor": 0.9}]),
        },
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": draw.choice((32, 64)),
        },
    ]
    del config
    return [{"rope_parameters": {**draw.choice(scalings), "rope_theta": theta, **extra}}]
