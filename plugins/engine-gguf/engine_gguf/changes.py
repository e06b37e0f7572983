"""What is done to a tensor between its GGUF file and its place in a checkpoint. Knows numbers and
rows, no file.

Converters lay some tensors out anew for llama.cpp's kernels. Whole rows that are moved may be
blocks; a change of numbers or of columns is one of plain tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

from core.api import ModelError
from engine_gguf.counts import count

Config = Mapping[str, Any]
Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Change:
    """One of them."""

    apply: Callable[[Tensor, Config], Tensor]
    moves_rows: bool = False
    """It does nothing else, so blocks may stay."""


def turning_halves(*heads: str) -> Change:
    """Return the change of rows that turn as neighbours (0 with 1) so that halves of a head turn
    together (0 with half).
    """

    def apply(tensor: Tensor, config: Config) -> Tensor:
        number = count(config, *heads)
        rows = len(tensor)
        if not number or rows % (2 * number):
            raise ModelError(f"has {rows} rows, which are not {number} heads. Take another file.")
        split = tensor.view(number, rows // number // 2, 2, *tensor.shape[1:])
        return split.transpose(1, 2).reshape(tensor.shape)

    return Change(apply, moves_rows=True)


def by_head(heads: str, kv_heads: str = "") -> Change:
    """Return the change of rows that are all queries, all keys, all values: of each key-value head
    its own together.
    """

    def apply(tensor: Tensor, config: Config) -> Tensor:
        number = count(config, heads)
        groups = count(config, kv_heads, heads)
        if not number or not groups or number % groups or len(tensor) % (number + 2 * groups):
            raise ModelError(
                f"has {len(tensor)} rows, which are not those of {number} and {groups} heads."
            )
        size = len(tensor) // (number + 2 * groups)
        rest = tensor.shape[1:]
        queries, keys, values = torch.split(tensor, [number * size, groups * size, groups * size])
        parts = (queries.view(groups, -1, size, *rest), keys.view(groups, 1, size, *rest))
        return torch.cat((*parts, values.view(groups, 1, size, *rest)), 1).reshape(tensor.shape)

    return Change(apply, moves_rows=True)


def values_by_key(*, first: bool = False) -> Change:
    """Return the change of rows of value heads that lie in turns of key heads, so that each key
    head's lie together.

    `first`: behind the rows of queries and keys.
    """

    def apply(tensor: Tensor, config: Config) -> Tensor:
        keys = count(config, "linear_num_key_heads")
        values = count(config, "linear_num_value_heads")
        before = 2 * keys * count(config, "linear_key_head_dim") if first else 0
        own = tensor[before:]
        if not keys or values % keys or len(own) % max(values, 1):
            raise ModelError(
                f"has {len(tensor)} rows, which are not those of {keys} and {values} heads."
            )
        split = (
            own.view(values // keys, keys, -1, *tensor.shape[1:]).transpose(0, 1).reshape(own.shape)
        )
        return torch.cat((tensor[:before], split)) if before else split

    return Change(apply, moves_rows=True)


def _of_columns(tensor: Tensor, config: Config) -> Tensor:
    return values_by_key().apply(tensor.T.contiguous(), config).T


def _negative_log(tensor: Tensor, config: Config) -> Tensor:
    del config
    return _flat(-tensor.float()).log()


def _flat(tensor: Tensor) -> Tensor:
    return tensor.flatten() if tensor.shape[-1] == 1 else tensor


def plus(number: float) -> Change:
    """Return the change by a number that is added."""
    return Change(lambda tensor, config: tensor.float() + number)


def both(first: Change, second: Change) -> Change:
    """Return one change after another."""
    return Change(
        lambda tensor, config: second.apply(first.apply(tensor, config), config),
        first.moves_rows and second.moves_rows,
    )


CONV: Final = Change(lambda tensor, config: tensor.reshape(tensor.shape[-2], 1, tensor.shape[-1]))
"""[channels, taps]"""
RATE: Final = Change(_negative_log)
COLUMN: Final = Change(lambda tensor, config: _flat(tensor))
FLAT: Final = Change(lambda tensor, config: tensor.flatten())
TRANSPOSED: Final = Change(lambda tensor, config: tensor.T)
ROW: Final = Change(lambda tensor, config: tensor.reshape(1, -1))
LESS_ONE: Final = plus(-1.0)
_VALUES: Final = values_by_key()
_MAMBA: Final = {"ssm_conv1d.weight": CONV, "ssm_a": RATE}
_MAMBA2: Final = {**_MAMBA, "ssm_d": COLUMN, "ssm_norm.weight": FLAT}
_PAIRED: Final = {
    f"{part}.{suffix}": turning_halves(*heads)
    for part, heads in (
        ("attn_q", ("num_attention_heads",)),
        ("attn_k", ("num_key_value_heads", "num_attention_heads")),
    )
    for suffix in ("weight", "bias")
}
_NORMS: Final = (
    "attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm", "output_norm",
)  # fmt: skip
_LESS_ONE: Final = {f"{norm}.weight": LESS_ONE for norm in _NORMS}
_SHARE: Final = {"ffn_gate_inp_shexp.weight": ROW}
_LFM2: Final = {"shortconv.conv.weight": CONV}
_DELTA: Final = {**_MAMBA, **_LESS_ONE, **_SHARE}
_TILED: Final = {
    **_DELTA,
    "ssm_a": both(RATE, _VALUES),
    "ssm_dt.bias": _VALUES,
    "ssm_conv1d.weight": both(CONV, values_by_key(first=True)),
    "attn_qkv.weight": values_by_key(first=True),
    "attn_gate.weight": _VALUES,
    "ssm_alpha.weight": _VALUES,
    "ssm_beta.weight": _VALUES,
    "ssm_out.weight": Change(_of_columns),
}
_GPT: Final = {
    f"{part}.weight": TRANSPOSED for part in ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
}
_BY_HEAD: Final = {
    f"attn_qkv.{suffix}": by_head("num_attention_heads") for suffix in ("weight", "bias")
}

CHANGES: Final[Mapping[str, Mapping[str, Change]]] = {
    **dict.fromkeys(
        (
            f"{name}ForCausalLM"
            for name in ("Llama", "Mistral", "Mixtral", "Arcee", "Granite", "Olmo", "SmolLM3")
        ),
        _PAIRED,
    ),
    **dict.fromkeys(("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), _PAIRED),
    **dict.fromkeys(
        (f"{name}ForCausalLM" for name in ("Gemma", "Gemma2", "Gemma3", "Nemotron")),
        _LESS_ONE,
    ),
    "BambaForCausalLM": {**_MAMBA2, **_PAIRED},
    "BloomForCausalLM": {f"attn_qkv.{suffix}": by_head("n_head") for suffix in ("weight", "bias")},
    "FalconForCausalLM": {
        f"attn_qkv.{suffix}": by_head("num_attention_heads", "num_kv_heads")
        for suffix in ("weight", "bias")
    },
    "FalconH1ForCausalLM": _MAMBA2,
    "FalconMambaForCausalLM": _MAMBA,
    "GPT2LMHeadModel": _GPT,
    "GPTNeoXForCausalLM": _BY_HEAD,
    "GraniteMoeHybridForCausalLM": {**_MAMBA2, **_PAIRED},
    "JambaForCausalLM": _MAMBA,
    **dict.fromkeys(("Lfm2ForCausalLM", "Lfm2MoeForCausalLM"), _LFM2),
    "Mamba2ForCausalLM": _MAMBA2,
    "MambaForCausalLM": _MAMBA,
    "NemotronHForCausalLM": _MAMBA2,
    "Qwen2MoeForCausalLM": _SHARE,
    "Qwen3NextForCausalLM": _DELTA,
    **dict.fromkeys(("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"), _TILED),
}
"""By architecture and tensor, suffix included."""
