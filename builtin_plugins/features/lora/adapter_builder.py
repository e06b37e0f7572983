"""Builds this rank's deltas of each module from an adapter's tensors.

Errors name every mismatch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from builtin_plugins.features.lora.adapter_file import AdapterFiles, BadAdapter, RawBits
from builtin_plugins.features.lora.adapter_module import AdapterModule
from builtin_plugins.features.lora.deltas import (
    Delta,
    Factors,
    LatentDelta,
    LinearDelta,
    VocabDelta,
)
from builtin_plugins.features.lora.expert_builder import ExpertBuilder
from builtin_plugins.features.lora.kernels import LoraKernel, PackedLayer, pack
from builtin_plugins.features.lora.peft import PeftConfig, parse_tensor_name
from builtin_plugins.features.lora.target_modules import TargetModule, TargetModules
from core.model_spec.parallel import ParallelGroup
from core.models.layers.embedding import Embedding, Head
from core.models.layers.experts import Experts
from core.models.layers.latent_attention import LatentAttention

Tensor = torch.Tensor
CHUNK_NUMBERS: Final = 1 << 14
"""Numbers converted at once; few enough for torch to use one thread."""
_DTYPES: Final[Mapping[str, tuple[type[np.generic], torch.dtype]]] = {
    "F64": (np.int64, torch.float64),
    "F32": (np.int32, torch.float32),
    "F16": (np.int16, torch.float16),
    "BF16": (np.int16, torch.bfloat16),
}


@dataclass(slots=True)
class BuiltAdapter:
    """An adapter, ready for one rank's modules."""

    packed: dict[nn.Module, PackedLayer] = field(default_factory=dict)
    """Deltas that the kernel adds."""
    deltas: dict[nn.Module, Delta] = field(default_factory=dict)
    """Deltas that torch adds."""
    unmatched: list[str] = field(default_factory=list)
    """Names of tensors without a target here; another pipeline stage may have one."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        packed = sum(layer.num_bytes for layer in self.packed.values())
        return packed + sum(
            tensor.nbytes for delta in self.deltas.values() for tensor in delta.tensors
        )


class AdapterBuilder:
    """Builds adapters for one rank of a model."""

    def __init__(
        self,
        targets: TargetModules,
        group: ParallelGroup,
        dtype: torch.dtype,
        device: str,
        kernel: LoraKernel | None,
        *,
        max_rank: int,
        sharded: bool,
    ) -> None:
        """`sharded`: split layers shard both factors, not only the one that follows the weight."""
        self._kernel = kernel
        self._targets = targets
        self._group = group
        self._dtype = dtype
        self._device = device
        self._max_rank = max_rank
        self._sharded = sharded
        self._experts = ExpertBuilder(targets, dtype, device, self._convert, max_rank)

    def build(self, files: AdapterFiles, tensors: Mapping[str, RawBits]) -> BuiltAdapter:
        """Return the adapter. Raises `BadAdapter` naming the mismatch."""
        config = PeftConfig.parse(files.config)
        roles: dict[str, dict[str, tuple[str, Tensor]]] = {}
        for stored in files.tensors:
            what = parse_tensor_name(stored.name)
            bits, dtype = _DTYPES[stored.dtype]
            tensor = torch.from_numpy(tensors[stored.name].view(bits)).view(dtype)
            if what.role in roles.setdefault(what.module, {}):
                raise BadAdapter(
                    f"{stored.name!r:.200}: found twice, under equivalent names. Save the adapter "
                    "again."
                )
            roles[what.module][what.role] = stored.name, tensor
        built = BuiltAdapter()
        matched: dict[str, TargetModule] = {}
        for module, found in roles.items():
            target = self._targets.find(module)
            if target is not None:
                matched[module] = target
                self._add(built, target, AdapterModule(module, found, config), config)
            elif not self._experts.add_stacked(built.deltas, module, found, config):
                built.unmatched += [name for name, _ in found.values()]
        _check_complete(config, matched, self._targets)
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

    def _convert(self, tensor: Tensor, scale: float = 1.0) -> Tensor:
        """Return a copy in the adapter dtype, scaled in float32."""
        out = torch.empty(tensor.shape, dtype=self._dtype)
        flat = tensor.contiguous().view(-1)
        target = out.view(-1)
        for at in range(0, len(flat), CHUNK_NUMBERS):
            piece = flat[at : at + CHUNK_NUMBERS]
            target[at : at + CHUNK_NUMBERS] = piece if scale == 1.0 else piece.float() * scale
        return out.to(self._device)

    # --- module types

    def _add(
        self, built: BuiltAdapter, target: TargetModule, own: AdapterModule, config: PeftConfig
    ) -> None:
        layer = target.module
        if isinstance(layer, (Embedding, Head)):
            self._add_vocab(built, target, own)
            head = self._tied_head(layer) if config.ties_embedding else None
            if head is not None:
                prefix, rows = next(iter(head.prefixes.items()))
                self._add_vocab(built, TargetModule(prefix, head, head.parts[prefix], rows), own)
            return
        if "weight" in own.roles:
            raise BadAdapter(
                f"{own.name('weight')} would replace a weight of {target.prefix}; modules_to_save "
                "is supported for the embedding and the head only."
            )
        if isinstance(layer, Experts):
            self._experts.add(built.deltas, target, own)
        elif isinstance(layer, LatentAttention):
            self._add_latent(built, target, own)
        else:
            self._add_linear(built, target, own)

    def _add_linear(self, built: BuiltAdapter, target: TargetModule, own: AdapterModule) -> None:
        part = target.part
        group = self._group
        delta = built.deltas.setdefault(target.module, LinearDelta())
        assert isinstance(delta, LinearDelta), "other module types are handled above"
        cuts_columns = part.columns_in != slice(0, part.in_features)
        cuts_rows = part.target.stop - part.target.start < part.out_features
        if own.has_factors:
            a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
            a = part.columns(a, -1)
            b = part.rows(b, -2)
            shared = self._sharded and group.size > 1 and (cuts_columns or cuts_rows)
            if shared:
                rank = -(-len(a) // group.size) * group.size  # zero-padded
                a = _padded(a, rank, 0)
                b = _padded(b, rank, 1)
                rows = target.rows
                if cuts_rows:
                    a = group.cut(a, 0)
                else:
                    b, rows = self._share_of_rows(b, rows)
            else:
                rows = target.rows
            met = (group, cuts_rows) if shared else (None, False)
            delta.parts.append(Factors(rows, self._convert(a), self._convert(b, own.scale), *met))
        for role, scale in (("bias", 1.0), ("added bias", own.scale)):
            # Added once, before the all-reduce
            if role in own.roles and not (cuts_columns and group.rank):
                self._add_bias(delta, target, own, role, scale)

    def _share_of_rows(self, b: Tensor, rows: slice) -> tuple[Tensor, slice]:
        each = -(-len(b) // self._group.size)
        first = min(each * self._group.rank, len(b))
        last = min(first + each, len(b))
        return b[first:last], slice(rows.start + first, rows.start + last)

    def _add_bias(
        self, delta: LinearDelta, target: TargetModule, own: AdapterModule, role: str, scale: float
    ) -> None:
        layer: Any = target.module
        new = target.part.rows(own.tensor(role, (target.part.out_features,))).float() * scale
        if role == "bias":
            new = new - self._base_bias(layer, target.rows, own)
        if delta.bias is None:
            size = getattr(layer, "out_features", target.rows.stop)
            delta.bias = torch.zeros(
                size, dtype=layer_dtype(layer, self._dtype), device=self._device
            )
        delta.bias[target.rows] += new.to(delta.bias)

    @staticmethod
    def _base_bias(layer: Any, rows: slice, own: AdapterModule) -> Tensor:
        bias = getattr(layer, "bias", None)
        if bias is None:
            raise BadAdapter(
                f"{own.name('bias')} replaces a bias, and the model's layer has none. Use the "
                "model that it was trained on."
            )
        return bias.data[rows].float()  # type: ignore[no-any-return]

    def _add_vocab(self, built: BuiltAdapter, target: TargetModule, own: AdapterModule) -> None:
        part = target.part
        count = target.rows.stop - target.rows.start
        delta = built.deltas.setdefault(target.module, VocabDelta(count))
        assert isinstance(delta, VocabDelta), "other module types are handled above"
        sizes = (part.in_features,), (part.out_features,)
        if own.has_factors:
            a, b = own.factors(*sizes, self._max_rank)
            delta.a = self._convert(a)
            delta.b = self._convert(part.rows(b, -2), own.scale)
        elif "embedding A" in own.roles or "embedding B" in own.roles:
            # PEFT: [rank, vocab], [hidden, rank]
            b, a = own.factors(*sizes[::-1], self._max_rank, kind="embedding ")
            delta.a = self._convert(a.T)
            delta.b = self._convert(part.rows(b.T, 0), own.scale)
        if "weight" in own.roles:
            delta.weight = self._convert(
                part.rows(own.tensor("weight", (part.out_features, part.in_features)), 0)
            )
        if "bias" in own.roles:
            rows = part.pieces[0][0]
            new = own.tensor("bias", (part.out_features,))[rows].float()
            delta.bias = self._convert(new - self._base_bias(target.module, rows, own))

    def _tied_head(self, layer: nn.Module) -> Any:
        heads = (
            target.module
            for target in self._targets.by_prefix.values()
            if isinstance(target.module, Head)
        )
        return next((head for head in heads if head.rows is layer), None)

    def _add_latent(self, built: BuiltAdapter, target: TargetModule, own: AdapterModule) -> None:
        layer: Any = target.module
        spec = layer.spec
        part = target.part
        a, b = own.factors((part.in_features,), (part.out_features,), self._max_rank)
        by_head = part.rows(b, -2).view(layer.heads, spec.key_size + spec.value_size, len(a))
        key = by_head[:, : spec.key_size]
        value = by_head[:, spec.key_size :]
        built.deltas[layer] = LatentDelta(
            self._convert(a), self._convert(key, own.scale), self._convert(value, own.scale)
        )


def _padded(tensor: Tensor, size: int, axis: int) -> Tensor:
    more = list(tensor.shape)
    more[axis] = size - tensor.shape[axis]
    return torch.cat([tensor, tensor.new_zeros(more)], axis) if more[axis] else tensor


def layer_dtype(layer: Any, otherwise: torch.dtype) -> torch.dtype:
    """Return the dtype of a layer's bias, which is that of its product."""
    bias = getattr(layer, "bias", None)
    return otherwise if bias is None else bias.dtype


def _check_complete(
    config: PeftConfig, matched: Mapping[str, TargetModule], targets: TargetModules
) -> None:
    """Raise `BadAdapter` for a target without tensors if similar layers have some.

    Modules are similar if their names differ in numbers only. Module names of this model that the
    adapter never uses may be newer than its training.
    """
    forms = {
        re.sub(r"\d+", "#", target.prefix): (module, target.prefix)
        for module, target in matched.items()
    }
    there = {target.prefix for target in matched.values()}
    for prefix, target in targets.by_prefix.items():
        known = forms.get(re.sub(r"\d+", "#", prefix))
        if known is None or prefix in there or isinstance(target.module, Experts):
            continue
        expected = _renumbered(*known, prefix)
        if config.targets_module(expected):
            raise BadAdapter(
                f"tensors of {expected!r:.200} are missing, which target_modules lists. Save the "
                "adapter again, or list its layers in layers_to_transform."
            )


def _renumbered(module: str, prefix: str, other: str) -> str:
    """Return a module's name with its numbers replaced by those of another prefix."""
    numbers = iter(re.findall(r"\d+", other))
    count = len(re.findall(r"\d+", prefix))
    if len(re.findall(r"\d+", module)) != count:
        return other
    return re.sub(r"\d+", lambda _: next(numbers), module)
