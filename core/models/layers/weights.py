"""Which checkpoint tensor fills which parameter, and the strict rule: every tensor is used or
ignored by name.

Layers register what they expect when they are built; loading then streams the checkpoint once, in
its own order, each tensor going straight to its final place. Knows names and shapes; knows no file
and no layer.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    then: Callable[[], None] | None = None
    """Called after the tensors of a load, once for all slots that name it."""


class WeightMap:
    """Checkpoint names and their slots.

    A map may hold others, each under a prefix and with renaming of its own.
    """

    def __init__(
        self, *, rename: Sequence[tuple[str, str]] = (), ignored: Sequence[str] = ()
    ) -> None:
        self.times_filled = 0
        """Each time, what was computed with the weights means something else."""
        self._slots: dict[str, Slot] = {}
        self._instead: dict[str, tuple[Mapping[str, Slot], Sequence[str]]] = {}
        self._shared: dict[str, Any] = {}
        self._maps: dict[str, WeightMap] = {}
        self._at_end: list[Callable[[], None]] = []
        self._rename = [(re.compile(pattern), replacement) for pattern, replacement in rename]
        self._ignored = [re.compile(fnmatch.translate(pattern)) for pattern in ignored]

    def add(
        self,
        name: str,
        shape: Sequence[int] | None,
        fill: Callable[[torch.Tensor], None],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Expect a tensor; `fill` is called with it in each load that has it, and `then` after that
        load.
        """
        if name in self._slots:
            raise ModelError(
                f"two parts of the model want the checkpoint tensor {name!r}; correct its weight "
                "names."
            )
        self._slots[name] = Slot(None if shape is None else tuple(shape), fill, then)

    def add_map(self, prefix: str, other: WeightMap) -> None:
        """Give every tensor whose name, renamed by us, begins with `prefix` to another map, which
        sees the rest of it.

        What it renames, ignores and misses is its own affair: a tower and a decoder under it need
        not know each other.
        """
        self._maps[prefix] = other

    def at_end(self, call: Callable[[], None]) -> None:
        """Have something called after every `load`: what is computed and in no checkpoint."""
        self._at_end.append(call)

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return what `make` gives for the first of several layers that share a checkpoint's
        tensor.
        """
        if name not in self._shared:
            self._shared[name] = make()
        return cast("T", self._shared[name])

    def add_instead(
        self,
        name: str,
        shape: Sequence[int] | None,
        fill: Callable[[torch.Tensor], None],
        of: Sequence[str],
        then: Callable[[], None] | None = None,
    ) -> None:
        """Take a tensor in place of the expected ones named by `of`, where a checkpoint has it."""
        self.add_group_instead(
            {name: Slot(None if shape is None else tuple(shape), fill, then)}, of
        )

    def add_group_instead(self, slots: Mapping[str, Slot], of: Sequence[str]) -> None:
        """Expect all of `slots` in place of those named by `of`, where a checkpoint has one of
        them.
        """
        self._instead |= dict.fromkeys(slots, (slots, of))

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the name and shape of every expected tensor whose shape is known."""
        return {
            name: slot.shape for name, slot in self._all_slots().items() if slot.shape is not None
        }

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill every slot.

        Raises `ModelError` naming missing, unexpected and misshapen tensors together.
        """
        waiting = self._all_slots()
        faults = Faults()
        touched = _fill(self._matched(tensors, waiting, faults))
        faults.check(waiting)
        for call in (*touched, *self._calls_at_end()):
            call()
        self.times_filled += 1

    def update(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill some of the slots again, in the memory they have.

        Raises `ModelError` naming unknown and misshapen tensors, and has changed nothing then.
        """
        faults = Faults(
            "the tensors do not fit the model that is loaded",
            "Send what its checkpoint would hold.",
        )
        matched = list(self._matched(tensors, self._all_slots(), faults))
        faults.check(())
        for call in _fill(matched):
            call()
        self.times_filled += 1

    def _all_slots(self) -> dict[str, Slot]:
        """Return our slots and those of the maps we hold, by whole names."""
        below = (
            (prefix + name, slot)
            for prefix, part in self._maps.items()
            for name, slot in part._all_slots().items()
        )
        return {**self._slots, **dict(below)}

    def _calls_at_end(self) -> list[Callable[[], None]]:
        return [
            *self._at_end,
            *(call for part in self._maps.values() for call in part._calls_at_end()),
        ]

    def _matched(
        self, tensors: Iterable[tuple[str, torch.Tensor]], waiting: dict[str, Slot], faults: Faults
    ) -> Iterator[tuple[str, Slot, torch.Tensor]]:
        """Yield each tensor that fits, with its slot, which waits no longer; write down what does
        not fit.
        """
        known = set(waiting)
        for found, tensor in tensors:
            name = self._name_of(found)
            slot = (
                None
                if name is None
                else waiting.pop(name, None) or self._in_place_of(name, waiting)
            )
            if name is not None and slot is None:
                faults.unexpected.append(
                    f"{_shown(found)} (twice)" if name in known else _shown(found)
                )
            elif slot is not None and slot.shape is not None and tuple(tensor.shape) != slot.shape:
                sizes = f"expected {list(slot.shape)}, found {list(tensor.shape)}"
                faults.misshapen.append(f"{_shown(found)}: {sizes}")
            elif slot is not None:
                yield found, slot, tensor

    def _in_place_of(self, name: str, waiting: dict[str, Slot], under: str = "") -> Slot | None:
        part = self._map_of(name)
        if part is not None:
            return self._maps[part]._in_place_of(name.removeprefix(part), waiting, under + part)
        slots, replaced = self._instead.get(name, ({}, ()))
        if not slots or not all(under + other in waiting for other in replaced):
            return None  # twice, or beside some of what it would replace
        for other in replaced:
            del waiting[under + other]
        waiting.update({under + other: slot for other, slot in slots.items() if other != name})
        return slots[name]

    def renamed(self, name: str) -> str:
        """Return the name that a tensor of a checkpoint has here, whether it is expected or not."""
        for pattern, replacement in self._rename:
            name = pattern.sub(replacement, name)
        part = self._map_of(name)
        return name if part is None else part + self._maps[part].renamed(name.removeprefix(part))

    def _name_of(self, name: str) -> str | None:
        """Return the name under which a tensor is expected; None: it is ignored."""
        for pattern, replacement in self._rename:
            name = pattern.sub(replacement, name)
        part = self._map_of(name)
        if part is not None:
            below = self._maps[part]._name_of(name.removeprefix(part))
            return None if below is None else part + below
        known = name in self._slots or name in self._instead
        return None if not known and any(pattern.match(name) for pattern in self._ignored) else name

    def _map_of(self, name: str) -> str | None:
        """Return the longest prefix that has a map of its own."""
        return max(
            (prefix for prefix in self._maps if name.startswith(prefix)), key=len, default=None
        )


@dataclass(slots=True)
class Faults:
    """What is wrong with the names and shapes of tensors."""

    what: str = "the checkpoint does not fit the model its config.json describes"
    cure: str = (
        "Check that config.json and weights belong together and that the download is complete."
    )
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def check(self, missing: Iterable[str]) -> None:
        """Raise `ModelError` when there is any fault."""
        faults = [
            _listed("missing tensors", [_near(name, self.unexpected) for name in missing]),
            _listed("unexpected tensors", self.unexpected),
            _listed("tensors of the wrong shape", self.misshapen),
        ]
        if any(faults):
            listed = "\n  ".join(fault for fault in faults if fault)
            raise ModelError(f"{self.what}\n  {listed}\n  {self.cure}")


def _fill(matched: Iterable[tuple[str, Slot, torch.Tensor]]) -> list[Callable[[], None]]:
    """Give each tensor to its slot; return what is to be called after them."""
    touched: dict[Callable[[], None], None] = {}
    for found, slot, tensor in matched:
        try:
            slot.fill(tensor)
        except ModelError as error:
            raise ModelError(f"{_shown(found)} {error}") from error
        if slot.then is not None:
            touched[slot.then] = None
    return list(touched)


def place(parameter: torch.nn.Parameter, tensor: torch.Tensor) -> None:
    """Give a parameter the value of a whole checkpoint tensor, without a copy where the tensor can
    serve as it is.

    A second time it is copied into the memory of the first: whoever runs the model may hold its
    address.
    """
    same = tensor.dtype == parameter.dtype and tensor.device == parameter.device
    # type: ignore[attr-defined]
    again = getattr(parameter, "is_placed", False)
    parameter.is_placed = True
    if same and tensor.is_contiguous() and tensor.shape == parameter.shape and not again:
        parameter.data = tensor
    else:
        fill(parameter.data, tensor)


def fill(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a checkpoint tensor into a part of a parameter. Raises `ModelError` for integers."""
    refuse_integers(tensor)
    target.copy_(tensor)


def refuse_integers(tensor: torch.Tensor) -> None:
    """Raise `ModelError` for a plain weight that is stored as integers: they need a scale."""
    if not tensor.is_floating_point():
        raise ModelError(
            f"is stored as {str(tensor.dtype).removeprefix('torch.')}, but config.json names no "
            "quantization that would "
            "say what these numbers mean. Restore the model's own config.json, or take another "
            "checkpoint."
        )


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
