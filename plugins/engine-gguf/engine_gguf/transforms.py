"""Transforms of tensors from their GGUF layout to the checkpoint's. Independent of files.

Converters rearrange some tensors for llama.cpp's kernels. Whole rows may move as blocks; a change
of numbers or columns needs a plain tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from core.api import ModelError
from engine_gguf.config_source import count

Config = Mapping[str, Any]
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Transform:
    """One transform."""

    apply: Callable[[Tensor, Config], Tensor]
    moves_rows: bool = False
    """Whether it only moves rows, so that blocks may stay."""


def interleaved_to_halves(*heads: str) -> Transform:
    """Return the transform of interleaved RoPE pairs (0 with 1) to halves (0 with half)."""

    def apply(tensor: Tensor, config: Config) -> Tensor:
        number = count(config, *heads)
        rows = len(tensor)
        if not number or rows % (2 * number):
            raise ModelError(
                f"got {rows} rows; expected a multiple of {number} heads. Use another file."
            )
        split = tensor.view(number, rows // number // 2, 2, *tensor.shape[1:])
        return split.transpose(1, 2).reshape(tensor.shape)

    return Transform(apply, moves_rows=True)


def qkv_by_head(heads: str, kv_heads: str = "") -> Transform:
    """Return the transform of all queries, keys and values to groups of one key-value head each."""

    def apply(tensor: Tensor, config: Config) -> Tensor:
        number = count(config, heads)
        groups = count(config, kv_heads, heads)
        if not number or not groups or number % groups or len(tensor) % (number + 2 * groups):
            raise ModelError(
                f"got {len(tensor)} rows; expected rows of {number} query and {groups} key-value "
                "heads. Use another file."
            )
        size = len(tensor) // (number + 2 * groups)
        rest = tensor.shape[1:]
        queries, keys, values = torch.split(tensor, [number * size, groups * size, groups * size])
        parts = (queries.view(groups, -1, size, *rest), keys.view(groups, 1, size, *rest))
        return torch.cat((*parts, values.view(groups, 1, size, *rest)), 1).reshape(tensor.shape)

    return Transform(apply, moves_rows=True)


def values_by_key_head(*, first: bool = False) -> Transform:
    """Return the transform of value-head rows, interleaved by key head, to groups per key head.

    `first`: after the rows of queries and keys.
    """

    def apply(tensor: Tensor, config: Config) -> Tensor:
        keys = count(config, "linear_num_key_heads")
        values = count(config, "linear_num_value_heads")
        before = 2 * keys * count(config, "linear_key_head_dim") if first else 0
        own = tensor[before:]
        if not keys or values % keys or len(own) % max(values, 1):
            raise ModelError(
                f"got {len(tensor)} rows; expected rows of {keys} key and {values} value heads. "
                "Use another file."
            )
        split = (
            own.view(values // keys, keys, -1, *tensor.shape[1:]).transpose(0, 1).reshape(own.shape)
        )
        return torch.cat((tensor[:before], split)) if before else split

    return Transform(apply, moves_rows=True)


def _of_columns(tensor: Tensor, config: Config) -> Tensor:
    return values_by_key_head().apply(tensor.T.contiguous(), config).T


def _negative_log(tensor: Tensor, config: Config) -> Tensor:
    del config
    return _flat(-tensor.float()).log()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten() if tensor.shape[-1] == 1 else tensor


def add_constant(number: float) -> Transform:
    """Return the transform that adds a number."""
    return Transform(lambda tensor, config: tensor.float() + number)


def compose(first: Transform, second: Transform) -> Transform:
    """Return two transforms as one."""
    return Transform(
        lambda tensor, config: second.apply(first.apply(tensor, config), config),
        first.moves_rows and second.moves_rows,
    )


CONV: Final = Transform(
    lambda tensor, config: tensor.reshape(tensor.shape[-2], 1, tensor.shape[-1])
)
"""To [channels, 1, taps]."""
NEGATIVE_LOG: Final = Transform(_negative_log)
COLUMN: Final = Transform(lambda tensor, config: _flat(tensor))
FLAT: Final = Transform(lambda tensor, config: tensor.flatten())
TRANSPOSED: Final = Transform(lambda tensor, config: tensor.T)
ROW: Final = Transform(lambda tensor, config: tensor.reshape(1, -1))
MINUS_ONE: Final = add_constant(-1.0)
_VALUES: Final = values_by_key_head()
_MAMBA: Final = {"ssm_conv1d.weight": CONV, "ssm_a": NEGATIVE_LOG}
_MAMBA2: Final = {**_MAMBA, "ssm_d": COLUMN, "ssm_norm.weight": FLAT}
_ROPE_HALVES: Final = {
    f"{part}.{suffix}": interleaved_to_halves(*heads)
    for part, heads in (
        ("attn_q", ("num_attention_heads",)),
        ("attn_k", ("num_key_value_heads", "num_attention_heads")),
    )
    for suffix in ("weight", "bias")
}
_NORMS: Final = (
    "attn_norm",
    "attn_q_norm",
    "attn_k_norm",
    "ffn_norm",
    "post_attention_norm",
    "post_ffw_norm",
    "output_norm",
)
_MINUS_ONE: Final = {f"{norm}.weight": MINUS_ONE for norm in _NORMS}
_SHARE: Final = {"ffn_gate_inp_shexp.weight": ROW}
_LFM2: Final = {"shortconv.conv.weight": CONV}
_DELTA: Final = {**_MAMBA, **_MINUS_ONE, **_SHARE}
_DELTA_BY_KEY: Final = {
    **_DELTA,
    "ssm_a": compose(NEGATIVE_LOG, _VALUES),
    "ssm_dt.bias": _VALUES,
    "ssm_conv1d.weight": compose(CONV, values_by_key_head(first=True)),
    "attn_qkv.weight": values_by_key_head(first=True),
    "attn_gate.weight": _VALUES,
    "ssm_alpha.weight": _VALUES,
    "ssm_beta.weight": _VALUES,
    "ssm_out.weight": Transform(_of_columns),
}
_GPT: Final = {
    f"{part}.weight": TRANSPOSED for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
}
_BY_HEAD: Final = {
    f"attn_qkv.{suffix}": qkv_by_head("num_attention_heads") for suffix in ("weight", "bias")
}

TRANSFORMS: Final[Mapping[str, Mapping[str, Transform]]] = {
    **dict.fromkeys(
        (
            f"{name}ForCausalLM"
            for name in ("Llama", "Mistral", "Mixtral", "Arcee", "Granite", "Olmo", "SmolLM3")
        ),
        _ROPE_HALVES,
    ),
    **dict.fromkeys(("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), _ROPE_HALVES),
    **dict.fromkeys(
        (f"{name}ForCausalLM" for name in ("Gemma", "Gemma2", "Gemma3", "Nemotron")),
        _MINUS_ONE,
    ),
    "BambaForCausalLM": {**_MAMBA2, **_ROPE_HALVES},
    "BloomForCausalLM": {
        f"attn_qkv.{suffix}": qkv_by_head("n_head") for suffix in ("weight", "bias")
    },
    "FalconForCausalLM": {
        f"attn_qkv.{suffix}": qkv_by_head("num_attention_heads", "num_kv_heads")
        for suffix in ("weight", "bias")
    },
    "FalconH1ForCausalLM": _MAMBA2,
    "FalconMambaForCausalLM": _MAMBA,
    "GPT2LMHeadModel": _GPT,
    "GPTNeoXForCausalLM": _BY_HEAD,
    "GraniteMoeHybridForCausalLM": {**_MAMBA2, **_ROPE_HALVES},
    "JambaForCausalLM": _MAMBA,
    **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), _LFM2),
    "Mamba2ForCausalLM": _MAMBA2,
    "MambaForCausalLM": _MAMBA,
    "NemotronHForCausalLM": _MAMBA2,
    "Qwen2MoeForCausalLM": _SHARE,
    "Qwen3NextForCausalLM": _DELTA,
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), _DELTA_BY_KEY),
}
"""By architecture and tensor name with suffix."""
