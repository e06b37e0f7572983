"""Which checkpoint tensor fills which parameter, and the strict rule: every tensor is used or ignored by name.

Layers register what they expect when they are built; loading then streams the checkpoint once, in its own
order, each tensor going straight to its final place. Knows names and shapes; knows no file and no layer.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from core.errors import ModelError, did_you_mean

T = TypeVar("T")
SHOWN = 6
"""Tensors named in an error; the rest are counted."""


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one checkpoint tensor goes."""

    shape: tuple[int, ...] | None
    """What it must have; None: the taker checks by itself."""
    fill: Callable[[torch.Tensor], None]


class WeightMap:
    """Checkpoint names and their slots."""

    def __init__(self, *, rename: Sequence[tuple[str, str]] = (), ignored: Sequence[str] = ()) -> None:
        self._slots: dict[str, Slot] = {}
        self._instead: dict[str, tuple[Slot, Sequence[str]]] = {}
        self._shared: dict[str, Any] = {}
        self._rename = [(re.compile(pattern), replacement) for pattern, replacement in rename]
        self._ignored = [re.compile(fnmatch.translate(pattern)) for pattern in ignored]

    def add(self, name: str, shape: Sequence[int] | None, fill: Callable[[torch.Tensor], None]) -> None:
        """Expect a tensor; `fill` is called with it once."""
        if name in self._slots:
            raise ModelError(f"two parts of the model want the checkpoint tensor {name!r}; correct its weight names.")
        self._slots[name] = Slot(None if shape is None else tuple(shape), fill)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` gives for the first of several layers that share a checkpoint's tensor."""
        if name not in self._shared:
            self._shared[name] = make()
        return cast("T", self._shared[name])

    def add_instead(
        self, name: str, shape: Sequence[int], fill: Callable[[torch.Tensor], None], of: Sequence[str]
    ) -> None:
        """Take a tensor in place of the expected ones named by `of`, where a checkpoint has it."""
        self._instead[name] = Slot(tuple(shape), fill), of

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of every expected tensor whose shape is known."""
        return {name: slot.shape for name, slot in self._slots.items() if slot.shape is not None}

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every slot. Raises `ModelError` naming missing, unexpected and misshapen tensors together."""
        waiting = dict(self._slots)
        unexpected: list[str] = []
        misshapen: list[str] = []
        for found, tensor in tensors:
            name = self._renamed(found)
            slot = waiting.pop(name, None) or self._in_place_of(name, waiting)
            if slot is None:
                if not self._is_ignored(name):
                    unexpected.append(f"{_shown(found)} (twice)" if name in self._slots else _shown(found))
            elif slot.shape is not None and tuple(tensor.shape) != slot.shape:
                misshapen.append(f"{_shown(found)}: expected {list(slot.shape)}, found {list(tensor.shape)}")
            else:
                try:
                    slot.fill(tensor)
                except ModelError as error:
                    raise ModelError(f"{_shown(found)} {error}") from error
        faults = [
            _listed("missing tensors", [_near(name, unexpected) for name in waiting]),
            _listed("unexpected tensors", unexpected),
            _listed("tensors of the wrong shape", misshapen),
        ]
        if any(faults):
            raise ModelError(
                "the checkpoint does not fit the model its config.json describes\n  "
                + "\n  ".join(fault for fault in faults if fault)
                + "\n  Check that config.json and weights belong together and that the download is complete."
            )

    def _in_place_of(self, name: str, waiting: dict[str, Slot]) -> Slot | None:
        slot, replaced = self._instead.get(name, (None, ()))
        if not all(other in waiting for other in replaced):
            return None  # twice, or beside some of what it would replace
        for other in replaced:
            del waiting[other]
        return slot

    def _renamed(self, name: str) -> str:
        for pattern, replacement in self._rename:
            name = pattern.sub(replacement, name)
        return name

    def _is_ignored(self, name: str) -> bool:
        return any(pattern.match(name) for pattern in self._ignored)


def place(parameter: torch.nn.Parameter, tensor: torch.Tensor) -> None:
    """Give a parameter the value of a whole checkpoint tensor, without a copy where the tensor can serve as it is."""
    same = tensor.dtype == parameter.dtype and tensor.device == parameter.device
    if same and tensor.is_contiguous() and tensor.shape == parameter.shape:
        parameter.data = tensor
    else:
        fill(parameter.data, tensor)


def fill(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a checkpoint tensor into a part of a parameter. Raises `ModelError` for integers: they need a scale."""
    if not tensor.is_floating_point():
        raise ModelError(
            f"is stored as {str(tensor.dtype).removeprefix('torch.')}, but config.json names no quantization that would "
            "say what these numbers mean. Restore the model's own config.json, or take another checkpoint."
        )
    target.copy_(tensor)


def empty_parameter(*shape: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """Return an uninitialised parameter; its memory is not touched before it is filled."""
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _listed(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return f"{len(items)} {title}: {'; '.join(items[:SHOWN])}{more}"


def _shown(name: str) -> str:
    """Return a name from a file so that it can be printed: no control characters, no endless one."""
    return name if name.isprintable() and len(name) <= 120 else ascii(name[:120])


def _near(name: str, unexpected: Sequence[str]) -> str:
    return name + did_you_mean(name, unexpected[:200]) if len(unexpected) < 50 else name
