"""Maps checkpoint tensors to parameters; every tensor must be used or ignored by name.

Layers register the tensors they expect when they are built. Loading streams the checkpoint once, in
its own order, and each tensor goes straight to its parameter. Knows names and shapes, no file and
no layer. Also: the check for NaN and infinity, and a loader for models without a checkpoint.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import torch

from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.errors import ModelError, did_you_mean
from core.models.dtypes import dtype_name

if TYPE_CHECKING:
    import torch


T = TypeVar("T")
MAX_NAMED = 6
"""Maximum number of tensors named in an error."""
MAX_CHECKED_WHOLE: Final = 4096
"""Largest tensor with all elements checked for NaN during a load."""
NUM_SAMPLES: Final = 256
"""Elements checked of a larger tensor, spread evenly."""
_PIECE: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class WeightSlot:
    """Target of one checkpoint tensor."""

    shape: tuple[int, ...] | None
    """Expected shape; None: `load` checks the shape itself."""
    load: Callable[[torch.Tensor], None]
    after_load: Callable[[], None] | None = None
    """Called once after a load, for all slots that share it."""
    other_shape: tuple[int, ...] | None = None
    """A second accepted shape, which `load` tells from the first."""
    reads: bool = True
    """False: the tensor is another rank's, so only its name and shape are checked."""


class WeightMap:
    """Checkpoint names and their weight slots.

    A map may contain other maps, each under a prefix and with its own renaming.
    """

    def __init__(
        self,
        *,
        rename: Sequence[tuple[str, str]] = (),
        ignored: Sequence[str] = (),
        base: str = "",
    ) -> None:
        """`base` is a prefix that checkpoints of the model without its head leave out."""
        self.weights_version = 0
        """Number of loads; KV computed with an earlier version is stale."""
        self._slots: dict[str, WeightSlot] = {}
        self._alternatives: dict[str, tuple[Mapping[str, WeightSlot], Sequence[str]]] = {}
        self._fallbacks: dict[str, Callable[[], torch.Tensor | None]] = {}
        self._shared: dict[str, Any] = {}
        self._maps: dict[str, WeightMap] = {}
        self._load_remainder: Callable[[Mapping[str, torch.Tensor]], None] | None = None
        self._after_load: list[Callable[[], None]] = []
        self._rename = [(re.compile(pattern), replacement) for pattern, replacement in rename]
        self._ignored = [re.compile(fnmatch.translate(pattern)) for pattern in ignored]
        self._base = base

    def add(
        self,
        name: str,
        shape: Sequence[int] | None,
        load: Callable[[torch.Tensor], None],
        after_load: Callable[[], None] | None = None,
    ) -> None:
        """Expect a tensor: `load` is called with it, and `after_load` once after the load."""
        self.add_slot(name, WeightSlot(None if shape is None else tuple(shape), load, after_load))

    def add_slot(self, name: str, slot: WeightSlot) -> None:
        """Expect the tensor of a slot."""
        if name in self._slots:
            raise ModelError(
                f"two layers expect the checkpoint tensor {name!r}; correct the weight names."
            )
        self._slots[name] = slot

    def change(self, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Load what `change` returns for an expected tensor, at each load."""
        slot = self._slots.get(name)
        if slot is None:
            raise ModelError(
                f"{name}: expected a plain weight, which is changed when it is loaded. Use a "
                "checkpoint without quantization of this layer."
            )
        load = slot.load
        self._slots[name] = replace(slot, load=lambda tensor: load(change(tensor)))

    def add_map(self, prefix: str, other: WeightMap) -> None:
        """Delegate tensors with `prefix` (after renaming) to another map, without the prefix.

        The other map has its own renames, ignored patterns and missing tensors, so the parts of a
        multi-part model need not know each other.
        """
        self._maps[prefix] = other

    def set_remainder(self, load: Callable[[Mapping[str, torch.Tensor]], None]) -> None:
        """Load tensors without a slot by `load`, which gets them all by their checkpoint names."""
        self._load_remainder = load

    def after_load(self, call: Callable[[], None]) -> None:
        """Register a call after every `load`, for values that no checkpoint stores."""
        self._after_load.append(call)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        """Return one object for all layers that share a checkpoint tensor; `make` is called
        once.
        """
        if name not in self._shared:
            self._shared[name] = make()
        return cast("T", self._shared[name])

    def add_alternative(
        self,
        name: str,
        shape: Sequence[int] | None,
        load: Callable[[torch.Tensor], None],
        of: Sequence[str],
        after_load: Callable[[], None] | None = None,
    ) -> None:
        """Accept a tensor instead of the expected tensors `of`, if the checkpoint has it."""
        self.add_alternatives(
            {name: WeightSlot(None if shape is None else tuple(shape), load, after_load)}, of
        )

    def add_alternatives(self, slots: Mapping[str, WeightSlot], of: Sequence[str]) -> None:
        """Accept all of `slots` instead of the tensors `of`, if the checkpoint has one of them."""
        self._alternatives |= dict.fromkeys(slots, (slots, of))

    def add_fallback(self, name: str, read: Callable[[], torch.Tensor | None]) -> None:
        """Load what `read` returns as an expected tensor, if a checkpoint lacks it.

        `read` is called after the other tensors are loaded; None: the tensor is missing.
        """
        self._fallbacks[name] = read

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return name and shape of every expected tensor with a known shape."""
        return {
            name: slot.shape for name, slot in self._all_slots().items() if slot.shape is not None
        }

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Load every slot. Raises one `ModelError` for missing, unexpected and misshapen
        tensors.
        """
        waiting = self._all_slots()
        faults = LoadErrors()
        remainder: dict[str, torch.Tensor] | None = None if self._load_remainder is None else {}
        found = self._matched(tensors, waiting, faults, remainder)
        touched = _load_slots(chain(found, self._fallen_back(waiting)))
        faults.check(waiting)
        if self._load_remainder is not None:
            self._load_remainder(remainder or {})
        for call in (*touched, *self._after_load_calls()):
            call()
        self.weights_version += 1

    @torch.inference_mode()  # as parameters are loaded: a caller need not be in it
    def update(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Reload some of the slots in place.

        Raises `ModelError` for unknown and misshapen tensors, without any change.
        """
        faults = LoadErrors(
            "the tensors do not fit the loaded model",
            "Send tensors in the checkpoint's layout.",
        )
        matched = list(self._matched(tensors, self._all_slots(), faults))
        faults.check(())
        for call in _load_slots(matched):
            call()
        self.weights_version += 1

    def _all_slots(self) -> dict[str, WeightSlot]:
        """Return the slots of this map and of its inner maps, by full names."""
        below = (
            (prefix + name, slot)
            for prefix, part in self._maps.items()
            for name, slot in part._all_slots().items()
        )
        return {**self._slots, **dict(below)}

    def _fallen_back(
        self, waiting: dict[str, WeightSlot], under: str = ""
    ) -> Iterator[tuple[str, WeightSlot, torch.Tensor]]:
        """Yield the missing tensors that have a fallback."""
        for name, read in self._fallbacks.items():
            if under + name in waiting and (tensor := read()) is not None:
                yield under + name, waiting.pop(under + name), tensor
        for prefix, part in self._maps.items():
            yield from part._fallen_back(waiting, under + prefix)

    def _after_load_calls(self) -> list[Callable[[], None]]:
        return [
            *self._after_load,
            *(call for part in self._maps.values() for call in part._after_load_calls()),
        ]

    def _matched(
        self,
        tensors: Iterable[tuple[str, torch.Tensor]],
        waiting: dict[str, WeightSlot],
        faults: LoadErrors,
        remainder: dict[str, torch.Tensor] | None = None,
    ) -> Iterator[tuple[str, WeightSlot, torch.Tensor]]:
        """Yield each matching tensor with its slot; record the others in `faults`.

        Those without a slot go to `remainder`, if there is one.
        """
        known = set(waiting)
        for found, tensor in tensors:
            name = self._name_of(found)
            slot = (
                None
                if name is None
                else waiting.pop(name, None) or self._alternative_for(name, waiting)
            )
            if name is not None and slot is None and remainder is not None and name not in known:
                remainder[found] = tensor
            elif name is not None and slot is None:
                faults.unexpected.append(
                    f"{_printable(found)} (twice)" if name in known else _printable(found)
                )
            elif (
                slot is not None
                and slot.shape is not None
                and tuple(tensor.shape) not in (slot.shape, slot.other_shape)
            ):
                sizes = f"expected {list(slot.shape)}, found {list(tensor.shape)}"
                faults.misshapen.append(f"{_printable(found)}: {sizes}")
            elif slot is not None:
                yield found, slot, tensor

    def _alternative_for(
        self, name: str, waiting: dict[str, WeightSlot], under: str = ""
    ) -> WeightSlot | None:
        part = self._map_of(name)
        if part is not None:
            return self._maps[part]._alternative_for(name.removeprefix(part), waiting, under + part)
        slots, replaced = self._alternatives.get(name, ({}, ()))
        if not slots or not all(under + other in waiting for other in replaced):
            return None  # a duplicate, or mixed with tensors that it replaces
        for other in replaced:
            del waiting[under + other]
        waiting.update({under + other: slot for other, slot in slots.items() if other != name})
        return slots[name]

    def reads(self, found: str) -> bool:
        """Return whether a load reads the values of a checkpoint tensor."""
        name = self._name_of(found)
        if name is None:
            return False
        inner: WeightMap = self
        while (part := inner._map_of(name)) is not None:
            inner = inner._maps[part]
            name = name.removeprefix(part)
        slots, _ = inner._alternatives.get(name, ({}, ()))
        slot = inner._slots.get(name) or slots.get(name)
        return slot is None or slot.reads

    def renamed(self, name: str) -> str:
        """Return a checkpoint tensor's name after renaming, expected or not."""
        for pattern, replacement in self._rename:
            name = pattern.sub(replacement, name)
        part = self._map_of(name)
        return name if part is None else part + self._maps[part].renamed(name.removeprefix(part))

    def _name_of(self, name: str) -> str | None:
        """Return the name of an expected or unexpected tensor; None: it is ignored."""
        for pattern, replacement in self._rename:
            name = pattern.sub(replacement, name)
        part = self._map_of(name)
        if part is not None:
            below = self._maps[part]._name_of(name.removeprefix(part))
            return None if below is None else part + below
        for full in (name, self._base + name):
            if full in self._slots or full in self._alternatives:
                return full
            if any(pattern.match(full) for pattern in self._ignored):
                return None
        return name

    def _map_of(self, name: str) -> str | None:
        """Return the longest prefix with an inner map; None without one."""
        return max(
            (prefix for prefix in self._maps if name.startswith(prefix)), key=len, default=None
        )


@dataclass(slots=True)
class LoadErrors:
    """Unexpected and misshapen tensors of a load."""

    what: str = "the checkpoint does not fit the model its config.json describes"
    cure: str = (
        "Check that config.json and weights belong together and that the download is complete."
    )
    unexpected: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)

    def check(self, missing: Iterable[str]) -> None:
        """Raise `ModelError` if there are missing, unexpected or misshapen tensors."""
        faults = [
            _listed("missing tensors", [_near(name, self.unexpected) for name in missing]),
            _listed("unexpected tensors", self.unexpected),
            _listed("tensors of the wrong shape", self.misshapen),
        ]
        if any(faults):
            listed = "\n  ".join(fault for fault in faults if fault)
            raise ModelError(f"{self.what}\n  {listed}\n  {self.cure}")


def _load_slots(
    matched: Iterable[tuple[str, WeightSlot, torch.Tensor]],
) -> list[Callable[[], None]]:
    """Load each tensor into its slot; return the calls to make after the load."""
    touched: dict[Callable[[], None], None] = {}
    for found, slot, tensor in matched:
        try:
            slot.load(tensor)
        except ModelError as error:
            raise ModelError(f"{_printable(found)} {error}") from error
        if slot.after_load is not None:
            touched[slot.after_load] = None
    return list(touched)


def assign_weight(parameter: torch.nn.Parameter, tensor: torch.Tensor) -> None:
    """Set a parameter to a whole checkpoint tensor, without a copy if dtype and device match.

    A reload copies into the existing memory, because CUDA graphs hold its address.
    """
    same = tensor.dtype == parameter.dtype and tensor.device == parameter.device
    is_reload = getattr(parameter, "is_assigned", False)
    parameter.is_assigned = True  # type: ignore[attr-defined]
    can_share = same and tensor.is_contiguous() and tensor.shape == parameter.shape
    if can_share and not is_reload:
        parameter.data = tensor
    else:
        copy_weight(parameter.data, tensor)


def copy_weight(target: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy a checkpoint tensor into a part of a parameter. Raises `ModelError` for integers."""
    refuse_integers(tensor)
    target.copy_(tensor)


def refuse_integers(tensor: torch.Tensor) -> None:
    """Raise `ModelError` for a plain weight stored as integers, which need a scale."""
    if not tensor.is_floating_point():
        raise ModelError(
            f"is stored as {dtype_name(tensor.dtype)}, but config.json names no "
            "quantization that would "
            "say what these numbers mean. Restore the model's own config.json, or take another "
            "checkpoint."
        )


def empty_parameter(*shape: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """Return an uninitialised parameter; its memory is not touched before loading."""
    return torch.nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _listed(title: str, items: Sequence[str]) -> str:
    if not items:
        return ""
    more = f" and {len(items) - MAX_NAMED} more" if len(items) > MAX_NAMED else ""
    return f"{len(items)} {title}: {'; '.join(items[:MAX_NAMED])}{more}"


def _printable(name: str) -> str:
    """Return a checkpoint name that is safe to print: shortened, without control characters."""
    return name if name.isprintable() and len(name) <= 120 else ascii(name[:120])


def _near(name: str, unexpected: Sequence[str]) -> str:
    return name + did_you_mean(name, unexpected[:200]) if len(unexpected) < 50 else name


def check_finite(
    tensors: Iterable[tuple[str, torch.Tensor]], loader: object, where: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the loader's tensors. Raises `ModelError` for the first with NaN or infinity.

    Checks a sample of each tensor, which costs almost nothing and finds broken files;
    `engine doctor --model` checks everything. Messages name the loader's `reading` file, else
    `where`.
    """
    for name, tensor in tensors:
        if not tensor.is_meta and not is_finite(sample(tensor)):
            raise ModelError(not_finite(name, str(getattr(loader, "reading", None) or where)))
        yield name, tensor
        del tensor  # frees its pages before the next one is read


def not_finite(name: str, where: str) -> str:
    """Return the message about a tensor with NaN or infinity."""
    return (
        f"{where}: tensor {_printable(name)} holds NaN or infinite numbers. Download the file "
        "again, or use another checkpoint."
    )


def numbers_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements to check in one dimension; empty for integers and single values.

    A single infinite value is a mask in old checkpoints.
    """
    if not tensor.is_floating_point() or tensor.numel() < 2 or tensor.is_meta:
        return tensor.new_empty(0)
    return tensor.reshape(-1)


def sample(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements that loading checks."""
    flat = numbers_of(tensor)
    return flat if flat.numel() <= MAX_CHECKED_WHOLE else flat[:: flat.numel() // NUM_SAMPLES]


def is_finite(numbers: torch.Tensor) -> bool:
    """Return whether all elements are finite, for any floating-point dtype."""
    if numbers.numel() > _PIECE:
        return all(is_finite(part) for part in torch.split(numbers, _PIECE))
    if numbers.dtype.itemsize == 1:
        numbers = numbers.float()  # one-byte dtypes have no sum
    # A sum is not finite if one element is not; cheaper than a check per element.
    return math.isfinite(numbers.sum(dtype=torch.float64).item())


class NoWeights:
    """Weight loader of models without checkpoint tensors
    (`core.models.layers.weights:NoWeights`).
    """

    def __init__(self, source: ModelSource, config: EngineConfig) -> None:
        pass

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield nothing."""
        return iter(())

    def total_bytes(self) -> int:
        """Return 0."""
        return 0
