"""What layers share whose weights a method keeps: they expect its tensors, and let it repack.

Knows no format.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from core.deprecated import ROWS_OF_A_CUT_TENSOR
from core.models.layers.weights import Slot

if TYPE_CHECKING:
    import torch

    from core.contracts import BuildContext, QuantMethod
    from core.contracts.part import Part
    from core.models.layers.weights import WeightMap


class KeptLayer(nn.Module):
    """A layer whose weights its `method` keeps."""

    method: Any
    """A `LinearMethod`, `EmbeddingMethod` or `ExpertsMethod`."""
    parts: dict[str, Part]
    """By checkpoint prefix: which part of the weights under it this rank has."""
    _is_fresh = False
    _load: Callable[..., None] | None = None

    def expect(self, weights: WeightMap, prefix: str, part: Part) -> None:
        """Expect the tensors that the method reads of one prefix."""
        facts = self.facts(prefix)
        slots = self.slots(prefix, ".", facts.suffixes, part)
        for name, slot in slots.items():
            weights.add(name, slot.shape, slot.fill, slot.then)
        for other, suffix in getattr(facts, "other_names", {}).items():
            name = f"{prefix}.{suffix}"
            weights.add_group_instead({f"{prefix}.{other}": slots[name]}, (name,))
        for name, slot in self.slots(
            prefix, ".", getattr(facts, "optional_suffixes", ()), part
        ).items():
            weights.add_instead(name, slot.shape, slot.fill, (), slot.then)

    def facts(self, prefix: str) -> Any:
        """Return who knows the tensors under a prefix: the method, unless it says that those of one
        prefix are special.
        """
        facts: Callable[[str], Any] | None = getattr(self.method, "facts", None)
        return self.method if facts is None else facts(prefix)

    def slots(
        self, prefix: str, joint: str, suffixes: tuple[str, ...], part: Part
    ) -> dict[str, Slot]:
        """Return where the tensors of these suffixes go, by their names in the checkpoint."""
        if self._load is None:
            self._load = (
                _of_cut_tensors(self.method) if _is_older(self.method) else self.method.load
            )
        facts = self.method if part.num_experts else self.facts(prefix)
        return {
            f"{prefix}{joint}{suffix}": Slot(
                _shape(facts, suffix, part), partial(self._take, suffix, part), self.finish
            )
            for suffix in suffixes
        }

    def finish(self) -> None:
        """Let the method repack, where tensors came in since it last did; a `WeightMap` calls it
        after each load.
        """
        if self._is_fresh:
            self._is_fresh = False
            self.method.finish(self)

    def _take(self, suffix: str, part: Part, tensor: torch.Tensor) -> None:
        assert self._load is not None, "slots made it"
        self._is_fresh = True
        self._load(self, suffix, tensor, part)


def method_of(quant: QuantMethod, kind: str, prefix: str) -> Any:
    """Return the method that the quantization method has for a layer that is not linear; None: the
    plain one.
    """
    ask: Callable[[str], Any] | None = getattr(quant, kind, None)
    return None if ask is None else ask(prefix)


def put_onto(method: Any, plain: Callable[[], Any]) -> Any:
    """Return a method that was told, if it unpacks to other weights, what makes the device's method
    for plain ones.
    """
    onto: Callable[[Callable[[], Any]], None] | None = getattr(method, "onto", None)
    if onto is not None:
        onto(plain)
    return method


def plain_method(context: BuildContext, kind: str, prefix: str) -> Any:
    """Return the method by which the device keeps a plain weight of such a layer; None: it has
    none.
    """
    return None if context.plain is None else method_of(context.plain, kind, prefix)


def _shape(method: Any, suffix: str, part: Part) -> tuple[int, ...] | None:
    """Return what a method says of a tensor's shape; of one that says nothing, a weight is taken
    for plain.
    """
    shape: Callable[[str, Part], tuple[int, ...] | None] | None = getattr(method, "shape", None)
    if shape is not None:
        return shape(suffix, part)
    return part.shape if suffix == "weight" else None


def _is_older(method: Any) -> bool:
    """Say whether `load` is of the kind that takes rows and tensors that are cut for the rank."""
    *_, last = inspect.signature(method.load).parameters.values()
    return last.name == "rows" or last.annotation in ("slice", slice)


def _of_cut_tensors(method: Any) -> Callable[..., None]:
    """Return `load` as it is called today: tensors are cut, rows along the first axis, columns
    along a second.
    """
    warnings.warn(
        f"{type(method).__name__}: {ROWS_OF_A_CUT_TENSOR}", DeprecationWarning, stacklevel=2
    )

    def load(layer: nn.Module, suffix: str, tensor: torch.Tensor, part: Part) -> None:
        if part.transposed and suffix == "weight":
            tensor = tensor.T
        tensor = part.rows(tensor)
        own = part.columns_in
        if tensor.ndim > 1:
            first, last = (tensor.shape[1] * at // part.in_features for at in (own.start, own.stop))
            tensor = tensor[:, first:last]
        method.load(layer, suffix, tensor, part.target)

    return load
