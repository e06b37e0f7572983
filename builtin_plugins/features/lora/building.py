"""From an adapter's tensors to what it adds to each module on this rank.

Everything that does not fit is named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from builtin_plugins.features.lora.deltas import (
    Delta,
    ExpertFactors,
    ExpertsDelta,
    Factors,
    LatentDelta,
    LinearDelta,
    VocabDelta,
)
from builtin_plugins.features.lora.names import meaning
from builtin_plugins.features.lora.packing import Kernel, Packed, pack
from builtin_plugins.features.lora.peft import PeftConfig
from builtin_plugins.features.lora.places import Place, Places
from builtin_plugins.features.lora.stored import AdapterFiles, BadAdapter, Bits
from core.api import ParallelGroup
from core.models.layers.embedding import Embedding, Head
from core.models.layers.experts import Experts
from core.models.layers.latent_attention import LatentAttention

Tensor = torch.Tensor
PIECE: Final = 1 << 14
"""Numbers converted at once: so few that torch needs none of the threads that steps compute with.
"""
_DTYPES: Final[Mapping[str, tuple[type[np.generic], torch.dtype]]] = {
    "F64": (np.int64, torch.float64),
    "F32": (np.int32, torch.float32),
    "F16": (np.int16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),
}


@dataclass(slots=True)
class Built:
    """An adapter, ready for one rank's modules."""

    packed: dict[nn.Module, Packed] = field(default_factory=dict)
    """What the kernel adds."""
    deltas: dict[nn.Module, Delta] = field(default_factory=dict)
    """What torch adds."""
    unplaced: list[str] = field(default_factory=list)
    """Tensors that found no place here; another stage of a pipeline may have it."""

    @property
    def num_bytes(self) -> int:
        """Of all that is kept."""
        packed = sum(layer.num_bytes for layer in self.packed.values())
        return packed + sum(
            tensor.nbytes for delta in self.deltas.values() for tensor in delta.tensors
        )


class Builder:
    """Builds adapters for one rank of a model."""

    def __init__(
        self,
        places: Places,
        group: ParallelGroup,
        dtype: torch.dtype,
        device: str,
        kernel: Kernel | None,
        *,
        max_rank: int,
        sharded: bool,
    ) -> None:
        """`sharded`: ranks share out both factors of split layers, and not only the one that
        follows the weight.
        """
        self._kernel = kernel
        self._places = places
        self._group = group
        self._dtype = dtype
        self._device = device
        self._max_rank = max_rank
        self._sharded = sharded

    def build(self, files: AdapterFiles, kept: Mapping[str, Bits]) -> Built:
        """Return the adapter. Raises `BadAdapter` naming what does not fit."""
        config = PeftConfig.of(files.config)
        roles: dict[str, dict[str, tuple[str, Tensor]]] = {}
        for stored in files.tensors:
            what = meaning(stored.name)
            bits, dtype = _DTYPES[stored.dtype]
            tensor = torch.from_numpy(kept[stored.name].view(bits)).view(dtype)
            if what.role in roles.setdefault(what.module, {}):
                raise BadAdapter(
                    f"{stored.name!r:.200} is there twice, under names of one meaning."
                )
            roles[what.module][what.role] = stored.name, tensor
        built = Built()
        placed: dict[str, Place] = {}
        for module, found in roles.items():
            place = self._places.find(module)
            if place is not None:
                placed[module] = place
                self._put(built, place, _Module(module, found, config), config)
            elif not self._put_together(built, module, found, config):
                built.unplaced += [name for name, _ in found.values()]
        _check_complete(config, placed, self._places)
        if self._kernel is not None:
            built.packed = pack(self._kernel, built.deltas, self._dtype)
            built.deltas = {
                module: delta
                for module, delta in built.deltas.items()
                if module not in built.packed
            }
        for delta in built.deltas.values():
            if isinstance(delta, LinearDelta):
                delta.finish()
        return built

    # --- kinds of modules

    def _put(self, built: Built, place: Place, own: _Module, config: PeftConfig) -> None:
        layer = place.module
        if isinstance(layer, (Embedding, Head)):
            self._put_vocab(built, place, own)
            head = self._tied_head(layer) if config.ties else None
            if head is not None:
                prefix, rows = next(iter(head.prefixes.items()))
                self._put_vocab(built, Place(prefix, head, head.parts[prefix], rows), own)
            return
        if "weight" in own.roles:
            raise BadAdapter(
                f"{own.name('weight')} would replace a weight of {place.prefix}; modules_to_save "
                "is served for the "
                "embedding and the head."
            )
        if isinstance(layer, Experts):
            self._put_expert(built, place, own)
        elif isinstance(layer, LatentAttention):
            self._put_latent(built, place, own)
        else:
            self._put_linear(built, place, own)

    def _put_linear(self, built: Built, place: Place, own: _Module) -> None:
        part = place.part
        group = self._group
        delta = built.deltas.setdefault(place.module, LinearDelta())
        assert isinstance(delta, LinearDelta), "other kinds of modules are dealt with above"
        cuts_columns = part.columns_in != slice(0, part.in_features)
        cuts_rows = part.target.stop - part.target.start < part.out_features
        if own.has_factors:
            a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
            a = part.columns(a, -1)
            b = part.rows(b, -2)
            shared = self._sharded and group.size > 1 and (cuts_columns or cuts_rows)
            if shared:
                rank = (
                    -(-len(a) // group.size) * group.size
                )  # filled up with zeros, which add nothing
                a = _widened(a, rank, 0)
                b = _widened(b, rank, 1)
                rows = place.rows
                if cuts_rows:
                    a = group.cut(a, 0)
                else:
                    b, rows = self._share_of_rows(b, rows)
            else:
                rows = place.rows
            met = (group, cuts_rows) if shared else (None, False)
            delta.parts.append(Factors(rows, self._kept(a), self._kept(b, own.scale), *met))
        for role, scale in (("bias", 1.0), ("added bias", own.scale)):
            if role in own.roles and not (
                cuts_columns and group.rank
            ):  # it is added once, before ranks are summed
                self._add_bias(delta, place, own, role, scale)

    def _share_of_rows(self, b: Tensor, rows: slice) -> tuple[Tensor, slice]:
        each = -(-len(b) // self._group.size)
        first = min(each * self._group.rank, len(b))
        last = min(first + each, len(b))
        return b[first:last], slice(rows.start + first, rows.start + last)

    def _add_bias(
        self, delta: LinearDelta, place: Place, own: _Module, role: str, scale: float
    ) -> None:
        layer: Any = place.module
        new = place.part.rows(own.tensor(role, (place.part.out_features,))).float() * scale
        if role == "bias":
            new = new - self._base_bias(layer, place.rows, own)
        if delta.bias is None:
            size = getattr(layer, "out_features", place.rows.stop)
            delta.bias = torch.zeros(
                size, dtype=layer_dtype(layer, self._dtype), device=self._device
            )
        delta.bias[place.rows] += new.to(delta.bias)

    @staticmethod
    def _base_bias(layer: Any, rows: slice, own: _Module) -> Tensor:
        bias = getattr(layer, "bias", None)
        if bias is None:
            raise BadAdapter(f"{own.name('bias')} replaces a bias that the model's layer has not.")
        return bias.data[rows].float()  # type: ignore[no-any-return]

    def _put_vocab(self, built: Built, place: Place, own: _Module) -> None:
        part = place.part
        count = place.rows.stop - place.rows.start
        delta = built.deltas.setdefault(place.module, VocabDelta(count))
        assert isinstance(delta, VocabDelta), "other kinds of modules are dealt with above"
        sizes = (part.in_features,), (part.out_features,)
        if own.has_factors:
            a, b = own.factors(*sizes, self._max_rank)
            delta.a = self._kept(a)
            delta.b = self._kept(part.rows(b, -2), own.scale)
        elif "embedding A" in own.roles or "embedding B" in own.roles:
            b, a = own.factors(
                *sizes[::-1], self._max_rank, kind="embedding "
            )  # PEFT: [rank, vocab], [hidden, rank]
            delta.a = self._kept(a.T)
            delta.b = self._kept(part.rows(b.T, 0), own.scale)
        if "weight" in own.roles:
            delta.weight = self._kept(
                part.rows(own.tensor("weight", (part.out_features, part.in_features)), 0)
            )
        if "bias" in own.roles:
            rows = part.pieces[0][0]
            new = own.tensor("bias", (part.out_features,))[rows].float()
            delta.bias = self._kept(new - self._base_bias(place.module, rows, own))

    def _tied_head(self, layer: nn.Module) -> Any:
        heads = (
            place.module
            for place in self._places.by_prefix.values()
            if isinstance(place.module, Head)
        )
        return next((head for head in heads if head.rows is layer), None)

    def _put_latent(self, built: Built, place: Place, own: _Module) -> None:
        layer: Any = place.module
        spec = layer.spec
        part = place.part
        a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
        by_head = part.rows(b, -2).view(layer.heads, spec.key_size + spec.value_size, len(a))
        key = by_head[:, : spec.key_size]
        value = by_head[:, spec.key_size :]
        built.deltas[layer] = LatentDelta(
            self._kept(a), self._kept(key, own.scale), self._kept(value, own.scale)
        )

    # --- experts

    def _put_expert(self, built: Built, place: Place, own: _Module) -> None:
        """Put one expert's matrix, or all experts' where their tensors have an axis for them."""
        part = place.part
        layer: Any = place.module
        delta = self._experts(built, layer)
        if part.num_experts:
            a, b = _of_all_experts(own, part, self._max_rank)
            delta.parts.setdefault(part.matrix, []).append(
                self._expert_factors(place, a, b, own.scale)
            )
            return
        a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
        listed = delta.parts.setdefault(part.matrix, [])
        found = next((each for each in listed if each.rows == place.rows), None)
        count = 1 + max(each.expert for each in layer.parts.values() if not each.num_experts)
        if found is None or found.a.shape[1] < len(a):
            rank = len(a) if found is None else max(len(a), found.a.shape[1])
            grown = ExpertFactors(
                place.rows,
                torch.zeros(
                    count, rank, _length(part.columns_in), dtype=self._dtype, device=self._device
                ),
                torch.zeros(
                    count, _length(place.rows), rank, dtype=self._dtype, device=self._device
                ),
            )
            if found is not None:
                grown.a[:, : found.a.shape[1]] = found.a
                grown.b[:, :, : found.b.shape[2]] = found.b
                listed.remove(found)
            listed.append(grown)
            found = grown
        found.a[part.expert, : len(a)] = self._kept(part.columns(a, -1))
        found.b[part.expert, :, : len(a)] = self._kept(part.rows(b, -2), own.scale)

    def _put_together(
        self, built: Built, module: str, roles: Mapping[str, Any], config: PeftConfig
    ) -> bool:
        """Put tensors that PEFT keeps of a module's parameters, whose names it leaves out
        (`target_parameters`).
        """
        outer = module
        while outer.endswith(".base_layer"):
            outer = outer.removesuffix(".base_layer")
        own = _Module(module, roles, config)
        for place in self._places.experts(outer):
            part = place.part
            if own.has_factors and _fits_experts(own, part):
                a, b = _of_all_experts(own, part, self._max_rank)
                delta = self._experts(built, place.module)
                delta.parts.setdefault(part.matrix, []).append(
                    self._expert_factors(place, a, b, own.scale)
                )
                return True
        return False

    def _expert_factors(self, place: Place, a: Tensor, b: Tensor, scale: float) -> ExpertFactors:
        own = place.part.columns(a, -1), place.part.rows(b, -2)
        return ExpertFactors(place.rows, self._kept(own[0]), self._kept(own[1], scale))

    def _experts(self, built: Built, layer: Any) -> ExpertsDelta:
        if not hasattr(layer.method, "product"):
            raise BadAdapter(
                f"the experts' weights are kept by {type(layer.method).__name__}, which has no "
                "product by expert, so they "
                "take no adapter; serve the model unquantized, or adapt other modules."
            )
        delta = built.deltas.setdefault(layer, ExpertsDelta())
        assert isinstance(delta, ExpertsDelta), "other kinds of modules are dealt with above"
        return delta

    def _kept(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """Return a copy in our dtype, multiplied in float32."""
        out = torch.empty(tensor.shape, dtype=self._dtype)
        flat = tensor.contiguous().view(-1)
        target = out.view(-1)
        for at in range(0, len(flat), PIECE):
            piece = flat[at : at + PIECE]
            target[at : at + PIECE] = piece if scale == 1.0 else piece.float() * scale
        return out.to(self._device)


class _Module:
    """The tensors of one module of the adapter, with its rank and scale."""

    def __init__(
        self, module: str, roles: Mapping[str, tuple[str, Tensor]], config: PeftConfig
    ) -> None:
        self.roles = roles
        self.rank = config.rank_of(module)
        self.scale = config.scale_of(module)
        self._base = config.base_model

    @property
    def has_factors(self) -> bool:
        """It has at least one factor."""
        return "A" in self.roles or "B" in self.roles

    def name(self, role: str) -> str:
        """Return the name of a tensor in the file."""
        return repr(self.roles[role][0])[:200]

    def tensor(self, role: str, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor that has this shape."""
        name, tensor = self.roles[role]
        if tuple(tensor.shape) != shape:
            trained = f" ({self._base!r:.100})" if self._base else ""
            raise BadAdapter(
                f"{name!r:.200} has the shape {list(tensor.shape)}, and the model's weight needs "
                f"{list(shape)}: the "
                f"adapter was trained on another model{trained}, or its config states another rank."
            )
        return tensor

    def factors(
        self, inputs: tuple[int, ...], outputs: tuple[int, ...], most: int, kind: str = ""
    ) -> tuple[Tensor, Tensor]:
        """Return A [rank, inputs] and B [outputs, rank]."""
        self.check(most, kind)
        return self.tensor(f"{kind}A", (self.rank, *inputs)), self.tensor(
            f"{kind}B", (*outputs, self.rank)
        )

    def check(self, most: int, kind: str = "") -> None:
        """Raise `BadAdapter` where one factor is missing, or the rank is too large."""
        for one, other in (("A", "B"), ("B", "A")):
            if kind + one not in self.roles:
                raise BadAdapter(
                    f"{self.name(kind + other)} is there, and its lora_{one} is missing; save it "
                    "again."
                )
        if self.rank > most:
            raise BadAdapter(f"LoRA rank {self.rank} is greater than max_lora_rank {most}.")


def _fits_experts(own: _Module, part: Any) -> bool:
    if "A" not in own.roles or "B" not in own.roles:
        return False
    sizes = own.roles["A"][1].shape[-1], own.roles["B"][1].shape[-2]
    wanted = part.in_features, part.out_features
    return sizes in (wanted, wanted[::-1])


def _of_all_experts(own: _Module, part: Any, most: int) -> tuple[Tensor, Tensor]:
    """Return A [experts, rank, inputs] and B [experts, outputs, rank].

    PEFT keeps [experts * rank, inputs] and [outputs, rank * experts], and of a parameter that it
    takes for transposed what belongs to the other side.
    """
    own.check(most)
    a = own.roles["A"][1]
    b = own.roles["B"][1]
    count = part.num_experts
    rank = own.rank
    inputs = part.in_features
    outputs = part.out_features
    if a.ndim == b.ndim == 2 and a.shape[0] == b.shape[1] == count * rank:
        a = a.view(count, rank, -1)
        b = b.view(len(b), rank, count).permute(2, 0, 1)
        if (a.shape[2], b.shape[1]) == (outputs, inputs) and inputs != outputs:
            a, b = b.transpose(1, 2), a.transpose(1, 2)
    if tuple(a.shape) != (count, rank, inputs) or tuple(b.shape) != (count, outputs, rank):
        own.tensor("A", (count, rank, inputs))
        own.tensor("B", (count, outputs, rank))
    return a, b


def _widened(tensor: Tensor, size: int, axis: int) -> Tensor:
    more = list(tensor.shape)
    more[axis] = size - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(more)], axis) if more[axis] else tensor


def _length(piece: slice) -> int:
    return int(piece.stop - piece.start)


def layer_dtype(layer: Any, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype of a layer's bias, which is that of its product."""
    bias = getattr(layer, "bias", None)
    return otherwise if bias is None else bias.dtype


def _check_complete(config: PeftConfig, placed: Mapping[str, Place], places: Places) -> None:
    """Raise `BadAdapter` for a target that other layers have tensors of and this one has none.

    Modules are compared whose names differ in numbers only; names of this model's that the adapter
    does not use at all may be of modules that were not there when it was trained.
    """
    forms = {
        re.sub(r"\d+", "#", place.prefix): (module, place.prefix)
        for module, place in placed.items()
    }
    there = {place.prefix for place in placed.values()}
    for prefix, place in places.by_prefix.items():
        known = forms.get(re.sub(r"\d+", "#", prefix))
        if known is None or prefix in there or isinstance(place.module, Experts):
            continue
        expected = _renumbered(*known, prefix)
        if config.wants(expected):
            raise BadAdapter(
                f"tensors of {expected!r:.200} are missing, which target_modules names; the file "
                "is not complete. Save "
                "the adapter again, or state its layers in layers_to_transform."
            )


def _renumbered(module: str, prefix: str, wanted: str) -> str:
    """Return a module's name with the numbers of another prefix in place of its own."""
    numbers = iter(re.findall(r"\d+", wanted))
    count = len(re.findall(r"\d+", prefix))
    if len(re.findall(r"\d+", module)) != count:
        return wanted
    return re.sub(r"\d+", lambda _: next(numbers), module)
