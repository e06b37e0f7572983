"""Which tensors of a GGUF file become which weights, and which of those stay blocks. Knows names
and shapes, reads no data.

A weight stays in its blocks where a kernel multiplies by them and the parts that a layer fuses with
it do so, too. What newer converters fuse, and checkpoints have apart, is taken apart here: each
part is planned as if it were a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api import ModelError
from engine_gguf.counts import count
from engine_gguf.header import Header, Stored, shown
from engine_gguf.kinds import CODED, KEPT
from engine_gguf.names import Names, Place

GATE_UP: Final = ("ffn_gate_exps", "ffn_up_exps")
EXPERTS: Final = (*GATE_UP, "ffn_down_exps")
_FUSED: Final = (
    ("attn_q", "attn_k", "attn_v"),
    ("ffn_gate", "ffn_up"),
    ("ffn_gate_shexp", "ffn_up_shexp"),
    EXPERTS,
)
"""Parts that layers compute in one."""
_MADE_PLAIN: Final = frozenset(
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
"""Routers, convolutions, learned positions, and what is put together of several tensors."""
_PAIRS: Final = (
    GATE_UP,
    ("ffn_gate_shexp", "ffn_up_shexp"),
    ("ffn_gate", "ffn_up"),
    ("attn_k_b", "attn_v_b"),
)
_PAIRS_OF_DELTA: Final = ("attn_qkv", "attn_gate")
"""Two that may be one in a checkpoint."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is made of one tensor, or of some of its rows."""

    stored: Stored
    part: str
    """Its name within its layer, without suffix."""
    place: Place
    blocks: bool
    """It stays in its blocks."""
    own: tuple[int, int, int] | None = None
    """Axis, first and last of the rows that are meant, of a tensor that is taken apart."""
    pair: tuple[str, ...] = ()
    """The parts that are one in the checkpoint with this one, in their order."""


def plan_weights(headers: Iterable[Header], config: Mapping[str, Any]) -> list[list[Plan]]:
    """Return for each file what its tensors become, in the order of their data.

    Raises `ModelError` for one without a name.
    """
    headers = list(headers)
    names = Names(config)
    apart = [
        [
            piece
            for tensor in header.tensors
            if not names.ignores(tensor.name)
            for piece in _apart(tensor, names, config)
        ]
        for header in headers
    ]
    kinds = {piece.name: piece.stored.kind.name for own in apart for piece in own}
    return [
        [_plan(header, piece, names, kinds, config) for piece in own]
        for header, own in zip(headers, apart, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor, or a part of one under the name that it would have by itself."""

    name: str
    stored: Stored
    own: tuple[int, int, int] | None = None


def _apart(tensor: Stored, names: Names, config: Mapping[str, Any]) -> Iterator[Piece]:
    """Yield the parts of a tensor that the checkpoint has apart, or the tensor."""
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
        yield Piece(tensor.name, tensor)
        return
    if sum(sizes.values()) != tensor.shape[axis]:
        raise ModelError(
            f"{shown(tensor.name)} has {tensor.shape[axis]} rows, where the settings make "
            f"{sum(sizes.values())} of them. "
            "Take another file."
        )
    at = 0
    for name, size in sizes.items():
        yield Piece(f"{layer}.{name}.{suffix}", tensor, (axis, at, at + size))
        at += size


def _plan(
    header: Header, piece: Piece, names: Names, kinds: Mapping[str, str], config: Mapping[str, Any]
) -> Plan:
    place = names.place(piece.name)
    if place is None:
        raise ModelError(
            f"{header.path} has the tensor {shown(piece.stored.name)}, which "
            f"{config['architectures'][0]} has no place for. "
            "Take a file of a model that is served, or describe this one with --hf-config-path."
        )
    layer, dot, part, suffix = _split(piece.name)
    pair = next((pair for pair in (*_PAIRS, _PAIRS_OF_DELTA) if part in pair), ())
    other = next((name for name in pair if name != part), "")
    found = names.place(f"{layer}{dot}{other}.{suffix}") if other else None
    joined = (
        found is not None and found.name == place.name and f"{layer}{dot}{other}.{suffix}" in kinds
    )
    blocks = suffix == "weight" and len(piece.stored.shape) > 1
    blocks = (
        blocks and part not in _MADE_PLAIN and (place.change is None or place.change.moves_rows)
    )
    blocks = blocks and _stays(
        f"{layer}{dot}", part, pair if joined and "{}" not in place.name else (), kinds
    )
    return Plan(
        piece.stored,
        part,
        place,
        blocks,
        piece.own,
        pair if joined and "{}" not in place.name else (),
    )


def kept_blocks(plans: Iterable[Iterable[Plan]]) -> dict[str, str]:
    """Return the types of weights that stay in blocks, by the names of weights without their
    suffix.
    """
    return {
        plan.place.name.removesuffix(".weight"): plan.stored.kind.name
        for own in plans
        for plan in own
        if plan.blocks and plan.part not in EXPERTS
    }


def kept_experts(plans: Iterable[Iterable[Plan]]) -> dict[str, dict[str, str]]:
    """Return the types of the experts' weights that stay in blocks (gate, up, down), by the prefix
    that models ask by.
    """
    found: dict[str, dict[str, str]] = {}
    prefixes: dict[str, str] = {}
    for plan in (plan for own in plans for plan in own if plan.blocks and plan.part in EXPERTS):
        layer = plan.stored.name.partition(".ffn_")[0]
        name = plan.place.name
        found.setdefault(layer, {})[plan.part[4:-5]] = plan.stored.kind.name
        if plan.part == "ffn_up_exps":
            prefixes[layer] = name.partition(".{}.")[0] if "{}" in name else name.rpartition(".")[0]
    return {prefixes[layer]: kinds for layer, kinds in found.items() if layer in prefixes}


def _split(name: str) -> tuple[str, str, str, str]:
    """Return the layer, the point behind it, the part and the suffix of a tensor's name."""
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias", "scale"):
        stem = name
        suffix = ""
    pieces = stem.split(".")
    if pieces[0] == "blk" and len(pieces) > 2:
        return ".".join(pieces[:2]), ".", ".".join(pieces[2:]), suffix
    return "", "", stem, suffix


def _stays(layer: str, part: str, pair: tuple[str, ...], kinds: Mapping[str, str]) -> bool:
    """Say whether the kernels multiply by a tensor's blocks, and by those of all that is fused with
    it.

    Two that are one in the checkpoint must be of one type.
    """
    together = next((parts for parts in _FUSED if part in parts), (part,))
    own = [kinds[name] for each in together if (name := f"{layer}{each}.weight") in kinds]
    if len({kinds.get(f"{layer}{each}.weight") for each in pair}) > 1:
        return False
    return all(kind in KEPT for kind in own) or (
        all(kind in CODED for kind in own) and len(set(own)) == 1
    )
