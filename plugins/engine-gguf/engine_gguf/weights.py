"""Plans which GGUF tensors become which weights, and which of them stay in blocks. Reads no data.

A weight stays in blocks if a kernel multiplies them, and those of all parts that a layer fuses
with it. Tensors that newer converters fuse are split here: each part is planned as a tensor of its
own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api import ModelError
from engine_gguf.config_source import count
from engine_gguf.header import Header, TensorEntry, printable
from engine_gguf.tensor_names import TargetWeight, TensorNames
from engine_gguf.tensor_types import FORMAT_TYPES, KERNEL_TYPES

GATE_UP: Final = ("ffn_gate_exps", "ffn_up_exps")
EXPERTS: Final = (*GATE_UP, "ffn_down_exps")
_FUSED: Final = (
    ("attn_q", "attn_k", "attn_v"),
    ("ffn_gate", "ffn_up"),
    ("ffn_gate_shexp", "ffn_up_shexp"),
    EXPERTS,
)
"""Parts that layers fuse."""
_ALWAYS_PLAIN: Final = frozenset(
    (
        "attn_k_b",
        "attn_v_b",
        "ffn_gate_inp",
        "ffn_gate_inp_shexp",
        "position_embd",
        "shortconv.conv",
        "ssm_conv1d",
        "token_types",
    )
)
"""Routers, convolutions, learned positions, and tensors fused from several."""
_PAIRS: Final = (
    GATE_UP,
    ("ffn_gate_shexp", "ffn_up_shexp"),
    ("ffn_gate", "ffn_up"),
    ("attn_k_b", "attn_v_b"),
)
_DELTA_PAIRS: Final = ("attn_qkv", "attn_gate")
"""A pair that may be fused in a checkpoint."""


@dataclass(frozen=True, slots=True)
class WeightPlan:
    """The weight that one tensor, or some of its rows, becomes."""

    stored: TensorEntry
    part: str
    """Name within its layer, without suffix."""
    target: TargetWeight
    blocks: bool
    """Whether it stays in blocks."""
    own: tuple[int, int, int] | None = None
    """Axis, first and last index of its rows in a fused tensor."""
    pair: tuple[str, ...] = ()
    """Parts that are fused with this one in the checkpoint, in order."""


def plan_weights(headers: Iterable[Header], config: Mapping[str, Any]) -> list[list[WeightPlan]]:
    """Return, for each file, the plans of its tensors in data order.

    Raises `ModelError` for an unknown name.
    """
    headers = list(headers)
    names = TensorNames(config)
    apart = [
        [
            piece
            for tensor in header.tensors
            if not names.ignores(tensor.name)
            for piece in _split_fused(tensor, names, config)
        ]
        for header in headers
    ]
    kinds = {piece.name: piece.stored.kind.name for own in apart for piece in own}
    return [
        [_plan(header, piece, names, kinds, config) for piece in own]
        for header, own in zip(headers, apart, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """A tensor, or a part of a fused one under its own name."""

    name: str
    stored: TensorEntry
    own: tuple[int, int, int] | None = None


def _split_fused(
    tensor: TensorEntry, names: TensorNames, config: Mapping[str, Any]
) -> Iterator[TensorSlice]:
    """Yield the parts of a fused tensor, or the tensor."""
    layer, _, part, suffix = _split(tensor.name)
    sizes: dict[str, int] = {}
    axis = 0
    if part == "attn_qkv" and not names.knows(part):
        head = count(config, "head_dim")
        heads = count(config, "num_attention_heads")
        kv_heads = count(config, "num_key_value_heads", "num_attention_heads")
        sizes = {"attn_q": heads * head, "attn_k": kv_heads * head, "attn_v": kv_heads * head}
    elif part == "ffn_gate_up_exps" and len(tensor.shape) > 1:
        axis = 1
        sizes = dict.fromkeys(GATE_UP, tensor.shape[1] // 2)
    if not sizes:
        yield TensorSlice(tensor.name, tensor)
        return
    if sum(sizes.values()) != tensor.shape[axis]:
        raise ModelError(
            f"{printable(tensor.name)}: got {tensor.shape[axis]} rows; the settings expect "
            f"{sum(sizes.values())}. Use another file."
        )
    at = 0
    for name, size in sizes.items():
        yield TensorSlice(f"{layer}.{name}.{suffix}", tensor, (axis, at, at + size))
        at += size


def _plan(
    header: Header,
    piece: TensorSlice,
    names: TensorNames,
    kinds: Mapping[str, str],
    config: Mapping[str, Any],
) -> WeightPlan:
    target = names.target_of(piece.name)
    if target is None:
        raise ModelError(
            f"{header.path} has the tensor {printable(piece.stored.name)}, which "
            f"{config['architectures'][0]} does not have. Use a file of a supported model, or "
            "describe this one with --hf-config-path."
        )
    layer, dot, part, suffix = _split(piece.name)
    pair = next((pair for pair in (*_PAIRS, _DELTA_PAIRS) if part in pair), ())
    other = next((name for name in pair if name != part), "")
    found = names.target_of(f"{layer}{dot}{other}.{suffix}") if other else None
    is_fused = (
        found is not None and found.name == target.name and f"{layer}{dot}{other}.{suffix}" in kinds
    )
    blocks = suffix == "weight" and len(piece.stored.shape) > 1
    blocks = (
        blocks
        and part not in _ALWAYS_PLAIN
        and (target.transform is None or target.transform.moves_rows)
    )
    blocks = blocks and _keeps_blocks(
        f"{layer}{dot}", part, pair if is_fused and "{}" not in target.name else (), kinds
    )
    return WeightPlan(
        piece.stored,
        part,
        target,
        blocks,
        piece.own,
        pair if is_fused and "{}" not in target.name else (),
    )


def block_types(plans: Iterable[Iterable[WeightPlan]]) -> dict[str, str]:
    """Return the types of weights that stay in blocks, by weight name without suffix."""
    return {
        plan.target.name.removesuffix(".weight"): plan.stored.kind.name
        for own in plans
        for plan in own
        if plan.blocks and plan.part not in EXPERTS
    }


def expert_block_types(plans: Iterable[Iterable[WeightPlan]]) -> dict[str, dict[str, str]]:
    """Return the types of experts' weights in blocks (gate, up, down), by module prefix."""
    found: dict[str, dict[str, str]] = {}
    prefixes: dict[str, str] = {}
    for plan in (plan for own in plans for plan in own if plan.blocks and plan.part in EXPERTS):
        layer = plan.stored.name.partition(".ffn_")[0]
        name = plan.target.name
        found.setdefault(layer, {})[plan.part[4:-5]] = plan.stored.kind.name
        if plan.part == "ffn_up_exps":
            prefixes[layer] = name.partition(".{}.")[0] if "{}" in name else name.rpartition(".")[0]
    return {prefixes[layer]: kinds for layer, kinds in found.items() if layer in prefixes}


def _split(name: str) -> tuple[str, str, str, str]:
    """Return the layer, the dot after it, the part and the suffix of a tensor's name."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias", "scale"):
        stem = name
        suffix = ""
    pieces = stem.split(".")
    if pieces[0] == "blk" and len(pieces) > 2:
        return ".".join(pieces[:2]), ".", ".".join(pieces[2:]), suffix
    return "", "", stem, suffix


def _keeps_blocks(layer: str, part: str, pair: tuple[str, ...], kinds: Mapping[str, str]) -> bool:
    """Return whether kernels multiply a tensor's blocks, and those of all parts fused with it.

    Two parts fused in the checkpoint must have one type.
    """
    together = next((parts for parts in _FUSED if part in parts), (part,))
    own = [kinds[name] for each in together if (name := f"{layer}{each}.weight") in kinds]
    if len({kinds.get(f"{layer}{each}.weight") for each in pair}) > 1:
        return False
    return all(kind in KERNEL_TYPES for kind in own) or (
        all(kind in FORMAT_TYPES for kind in own) and len(set(own)) == 1
    )
