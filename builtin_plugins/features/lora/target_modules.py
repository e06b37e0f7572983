"""Target modules of adapters: every module with `prefixes`, found by its weights' names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from core_kernels.low_rank import padded

from core.models.layers.embedding import Embedding, Head

if TYPE_CHECKING:
    from torch import nn

    from core.model_spec.weight_shard import WeightShard


@dataclass(frozen=True, slots=True)
class TargetModule:
    """A weight that can be adapted."""

    prefix: str
    """Name in the checkpoint, as the architecture reads it."""
    module: nn.Module
    part: WeightShard
    rows: slice
    """Rows of the module's product."""


class TargetModules:
    """The target modules of one model, on this rank."""

    def __init__(self, model: Any, excluded: Iterable[nn.Module] = ()) -> None:
        """`excluded`: parts of the model that process no tokens of the step (encoders)."""
        others = {id(each) for part in excluded for each in part.modules()}
        self.by_prefix: dict[str, TargetModule] = {}
        for module in model.modules():
            prefixes: Mapping[str, slice] = getattr(module, "prefixes", {})
            if not hasattr(module, "adapter") or id(module) in others:
                continue
            for prefix, rows in prefixes.items():
                # A tied head and its embedding may share a name; the embedding has precedence.
                self.by_prefix.setdefault(
                    prefix, TargetModule(prefix, module, module.parts[prefix], rows)
                )
        self._by_suffix: dict[str, list[str]] = {}
        for prefix in self.by_prefix:
            for suffix in _suffixes(prefix):
                self._by_suffix.setdefault(suffix, []).append(prefix)
        self._renamed = getattr(getattr(model, "weights", None), "renamed", lambda name: name)

    def find(self, module: str) -> TargetModule | None:
        """Return the target of a module, by its name in the trained model."""
        for name in (module, *self._other_names(module)):
            found = self.by_prefix.get(name)
            if found is not None:
                return found
        # The trained model may contain this one, or be a part of it.
        ends = {*self._by_suffix.get(module, ()), *(_suffixes(module) & self.by_prefix.keys())}
        return self.by_prefix[ends.pop()] if len(ends) == 1 else None

    def experts(self, module: str) -> list[TargetModule]:
        """Return the targets of stacked experts, by the name of the module that contains them."""
        for name in (module, *self._other_names(module)):
            found = [
                target
                for prefix, target in self.by_prefix.items()
                if target.part.num_experts and prefix.rpartition(".")[0] == name
            ]
            if found:
                return found
        return []

    def _other_names(self, module: str) -> tuple[str, ...]:
        here = self._renamed(f"{module}.weight").removesuffix(".weight"), self._renamed(module)
        # transformers names every MoE module `mlp`, whatever the checkpoint does.
        return *here, *(
            module.replace(".mlp.", f".{other}.")
            for other in ("block_sparse_moe", "feed_forward", "ffn")
        )


def _suffixes(name: str) -> set[str]:
    """Return what follows each dot of a name."""
    parts = name.split(".")
    return {".".join(parts[i:]) for i in range(1, len(parts))}


def adapter_bytes(targets: TargetModules, rank: int, dtype: torch.dtype) -> int:
    """Return the bytes of an adapter of this rank on every layer but embedding and head."""
    by_expert = {
        id(target.module)
        for target in targets.by_prefix.values()
        if target.part.matrix and not target.part.num_experts
    }
    return (
        sum(
            _numbers(target, rank)
            for target in targets.by_prefix.values()
            # Experts may have a name each, and one for all of them as well.
            if not isinstance(target.module, (Embedding, Head))
            and not (target.part.num_experts and id(target.module) in by_expert)
        )
        * dtype.itemsize
    )


def _numbers(target: TargetModule, rank: int) -> int:
    columns = target.part.columns_in
    each: int = padded(columns.stop - columns.start) + padded(target.rows.stop - target.rows.start)
    return max(1, target.part.num_experts) * rank * each
