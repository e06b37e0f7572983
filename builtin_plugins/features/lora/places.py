"""Where in a model adapters may add: every module with `prefixes`, found by the names that its
weights have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from core.api import Part


@dataclass(frozen=True, slots=True)
class Place:
    """A weight that can be adapted."""

    prefix: str
    """Its name in the checkpoint, as the architecture reads it."""
    module: nn.Module
    part: Part
    rows: slice
    """Of the module's product."""


class Places:
    """The places of one model, on this rank."""

    def __init__(self, model: Any, left_out: Iterable[nn.Module] = ()) -> None:
        """`left_out`: parts of the model in which rows are not tokens of the step (encoders)."""
        others = {id(each) for part in left_out for each in part.modules()}
        self.by_prefix: dict[str, Place] = {}
        for module in model.modules():
            prefixes: Mapping[str, slice] = getattr(module, "prefixes", {})
            if not hasattr(module, "adapter") or id(module) in others:
                continue
            for prefix, rows in prefixes.items():
                # Of a tied head and its embedding, which may have one name, the embedding comes
                # first.
                self.by_prefix.setdefault(prefix, Place(prefix, module, module.parts[prefix], rows))
        self._renamed = getattr(getattr(model, "weights", None), "renamed", lambda name: name)

    def find(self, module: str) -> Place | None:
        """Return the place of a module, by the name it had when the adapter was trained."""
        for name in (module, *self._other_names(module)):
            found = self.by_prefix.get(name)
            if found is not None:
                return found
        # A model may have been trained inside another, or a part of this one by itself.
        ends = [p for p in self.by_prefix if p.endswith(f".{module}") or module.endswith(f".{p}")]
        return self.by_prefix[ends[0]] if len(ends) == 1 else None

    def experts(self, module: str) -> list[Place]:
        """Return the places of all experts' matrices together, by the name of the module that holds
        them.
        """
        for name in (module, *self._other_names(module)):
            found = [
                place
                for prefix, place in self.by_prefix.items()
                if place.part.num_experts and prefix.rpartition(".")[0] == name
            ]
            if found:
                return found
        return []

    def _other_names(self, module: str) -> tuple[str, ...]:
        here = self._renamed(f"{module}.weight").removesuffix(".weight"), self._renamed(module)
        # transformers calls every mixture `mlp`, whatever its checkpoints do.
        return *here, *(
            module.replace(".mlp.", f".{other}.")
            for other in ("block_sparse_moe", "feed_forward", "ffn")
        )
