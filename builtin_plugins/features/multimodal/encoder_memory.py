"""Memory of a tower that encodes one item, counted without computing it.

Floats are on the meta device. Integers are computed, since shapes follow from them: sizes of
images, patches of each, lengths of sequences. Items are encoded one by one, so the largest counts.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from core.model_spec.tower import Tower

META: Final = torch.device("meta")
CPU: Final = torch.device("cpu")
ATTENTION: Final = torch.nn.functional.scaled_dot_product_attention
READS: Final = (torch.ops.aten._local_scalar_dense, torch.ops.aten.item)
"""Operations that return a value of a tensor."""
UNTRUE: Final = (torch.ops.aten.eq, torch.ops.aten.isinf, torch.ops.aten.isnan)
"""Comparisons of floats that are false: padding is zeros. Others are true."""
RANGES: Final = torch.ops.aten.arange
"""Factory of integers, unless an argument is a float."""


def encoder_bytes(tower: Tower, modality: str, inputs: Mapping[str, torch.Tensor]) -> int:
    """Return the largest number of bytes that encoding an item takes, with its inputs and outputs.

    Weights are not counted. Raises what a tower raises that reads values of floats.
    """
    with torch.no_grad():  # not inference mode, in which operations are not split into their parts
        given = {
            name: torch.empty_like(tensor, device=META) if tensor.is_floating_point() else tensor
            for name, tensor in inputs.items()
        }
        with _Peak() as peak, _FusedAttention():
            tower.encode(modality, given)
    return int(peak.peak_bytes) + sum(tensor.nbytes for tensor in inputs.values())


class _FusedAttention(TorchFunctionMode):
    """Attention without a matrix of scores, as kernels of every device compute it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        attended = _attended(*args, **kwargs) if func is ATTENTION else None
        return func(*args, **kwargs) if attended is None else attended


def _attended(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> torch.Tensor | None:
    """Return the output of fused attention; None for heads that it does not take."""
    del key
    fits = query.ndim == 4 and query.shape[-1] == value.shape[-1]
    return torch.empty_like(query) if fits else None


class _Peak(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that are alive at the same time."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0
        self.peak_bytes = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()
        """Storages that were counted, or that came from outside."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        for tensor in _tensors((args, kwargs)):
            self._known.add(tensor.untyped_storage())
        if func.overloadpacket in READS and _is_unknown(args[0]):
            raise RuntimeError("the tower reads values of floats.")
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == CPU:
            args = (_known(args[0]),)
        args, kwargs = _placed(func, args, kwargs)
        found = func(*args, **kwargs)
        value = func.overloadpacket not in UNTRUE
        found = tree_map_only(torch.Tensor, lambda tensor: _decided(tensor, value), found)
        for tensor in _tensors(found):
            self._count(tensor.untyped_storage())
        return found

    def _count(self, storage: Any) -> None:
        """Count a storage until it is freed."""
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.num_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.num_bytes)
        weakref.finalize(storage, self._freed, size)

    def _freed(self, size: int) -> None:
        self.num_bytes -= size


def _placed(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with integers on the CPU, and all on meta next to floats."""
    if any(_is_unknown(tensor) for tensor in _tensors((args, kwargs))):
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], [each for index in args[1] for each in _as_positions(index)])
        args, kwargs = tree_map_only(torch.Tensor, _on_meta, (args, kwargs))
    elif kwargs.get("device") == META and not _is_float(func, args, kwargs):
        kwargs["device"] = CPU
    return args, kwargs


def _is_unknown(tensor: torch.Tensor) -> bool:
    """Return whether values of a tensor are not computed; those of integers always are."""
    return tensor.device != CPU


def _known(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor on the CPU, of zeros if its values are not computed."""
    return torch.zeros_like(tensor, device=CPU) if _is_unknown(tensor) else tensor


def _on_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device == META else torch.empty_like(tensor, device=META)


def _as_positions(index: Any) -> Sequence[Any]:
    """Return an index; a mask as the positions that it selects, for each of its axes."""
    is_mask = isinstance(index, torch.Tensor) and index.dtype == torch.bool
    return index.nonzero(as_tuple=True) if is_mask else (index,)


def _decided(tensor: torch.Tensor, value: bool) -> torch.Tensor:
    """Return a tensor; a comparison of floats has one value, as if nothing were padding."""
    is_open = tensor.dtype == torch.bool and _is_unknown(tensor)
    return torch.full(tensor.shape, value) if is_open else tensor


def _is_float(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a factory, or a copy to a device, makes floats."""
    dtype = kwargs.get("dtype")
    if dtype is not None:
        return bool(dtype.is_floating_point)
    sources = _tensors(args)
    if sources:
        return sources[0].is_floating_point()
    return func.overloadpacket is not RANGES or any(isinstance(each, float) for each in args)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
