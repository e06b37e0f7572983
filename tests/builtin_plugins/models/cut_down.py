"""Cuts the shapes of a published config.json down to a model that loads in a moment.

Ratios stay where they decide the layout: query heads per key-value head, width by hidden size,
experts per group, one period of layer patterns.
"""

from __future__ import annotations

from typing import Any

HIDDEN = ("hidden_size", "n_embd")
HEADS = ("num_attention_heads", "n_head")
KV_HEADS = ("num_key_value_heads", "multi_query_group_num")
LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
VOCABULARY = ("vocab_size", "padded_vocab_size")
WIDTHS = ("intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "moe_intermediate_size")
WIDTHS += ("shared_expert_intermediate_size", "attention_hidden_size", "word_embed_proj_dim")
HEAD_SIZES = ("head_dim", "kv_channels", "rotary_dim", "qk_nope_head_dim", "qk_rope_head_dim")
HEAD_SIZES += ("v_head_dim", "query_pre_attn_scalar")
RANKS = ("kv_lora_rank", "q_lora_rank", "time_step_rank")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
SMALLER = 8
"""Divisor of head sizes."""


def cut_down(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config with shapes cut down; all other fields are unchanged."""
    cut = dict(config)
    hidden = _first(config, HIDDEN)
    heads = _first(config, HEADS)
    new_hidden = 64
    if heads is not None:
        kv_heads = _first(config, KV_HEADS) or heads
        groups = 4 if kv_heads == heads else min(kv_heads, 2)
        new_heads = groups * min(heads // kv_heads, 4)
        size = config.get("head_dim") or config.get("kv_channels") or hidden // heads
        if heads * size == hidden:
            new_hidden = new_heads * (size // SMALLER)
        _set(cut, HEADS, new_heads)
        _set(cut, KV_HEADS, groups)
    _set(cut, HIDDEN, new_hidden)
    for name in WIDTHS:
        if cut.get(name):
            cut[name] = max(8, cut[name] * new_hidden // hidden // 8 * 8)
    for names, divisor in ((HEAD_SIZES, SMALLER), (RANKS, 16)):
        for name in names:
            if cut.get(name):
                cut[name] = max(2, cut[name] // divisor)
    for name in EXPERTS:
        if cut.get(name):
            cut[name] = min(cut[name], 16)
    for name in ("num_experts_per_tok", "experts_per_token"):
        if cut.get(name):
            cut[name] = min(cut[name], 4)
    layers = cut.get("sliding_window_pattern", 4)
    _set(cut, LAYERS, layers)
    if "layer_types" in cut:
        cut["layer_types"] = cut["layer_types"][:layers]
    _set(cut, VOCABULARY, 320)
    return cut


def _first(config: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)


def _set(config: dict[str, Any], names: tuple[str, ...], value: int) -> None:
    config.update({name: value for name in names if config.get(name) is not None})
