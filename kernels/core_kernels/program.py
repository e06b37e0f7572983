"""A recorded list of calls, made again in one call of the library, in memory of its own."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

import torch

from core_kernels.arena import Arena, Room
from core_kernels.attention import AttentionStep
from core_kernels.library import SIGNATURES, Library
from core_kernels.recording import Recording

Tensor = torch.Tensor

WORDS: Final = 16
"""Of one call, as cpu/program.h has it: the function's number, then its arguments."""
ATTENTION: Final = "core_paged_attention"
AGAIN: Final = "core_paged_attention_again"
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)


class Unrecordable(ValueError):
    """A recording cannot be done again; the text says why."""


class Program:
    """What was recorded. Not for several threads at once."""

    def __init__(
        self,
        library: Library,
        recording: Recording,
        steps: Sequence[Any],
        out: Tensor,
        room: Room | None = None,
    ) -> None:
        """`steps` are the attention's plans of the recorded step, `out` is what it returned. Raises
        `Unrecordable`.

        Layers that shared a plan share one in each run; those of `steps` that no call attended by
        can be as they like. Programs that share a `room` overwrite each other's results.
        """
        if recording.refused:
            raise Unrecordable(recording.refused)
        self._run: Final = library.core_program_run
        self._places: Final = _places(steps)
        self._steps: Final = (ctypes.c_void_p * max(1, len(steps)))()
        self._layers: Final = [
            self._layer(arguments[0]) for name, arguments in recording.calls if name == ATTENTION
        ]
        self._read: Final = {self._places[layer.starts] for layer in self._layers}
        arena = Arena(
            recording.made,
            [_pointers(*call) for call in recording.calls],
            out.data_ptr(),
            room or Room(),
        )
        result = arena.kept(out)
        if result is None:
            raise Unrecordable("what is returned lies in memory that was there before")
        self._arena: Final = arena
        self._out: Final = result
        self._count: Final = len(recording.calls)
        self._calls: Final = (ctypes.c_int64 * (WORDS * self._count))()
        layers = iter(self._layers)
        for number, (name, arguments) in enumerate(recording.calls):
            words = [library.core_program_number((AGAIN if name == ATTENTION else name).encode())]
            words += (
                self._again(number, next(layers))
                if name == ATTENTION
                else _words(number, name, arguments, arena)
            )
            if words[0] < 0 or len(words) > WORDS:
                raise Unrecordable(f"{name} is none of the calls that a program makes")
            self._calls[number * WORDS : number * WORDS + len(words)] = words

    def run(self, steps: Sequence[Any]) -> Tensor:
        """Do it again with these plans; the next run overwrites the result.

        Raises `IndexError` for an id that is no row of an embedding.
        """
        for place in self._read:
            self._steps[place] = ctypes.addressof(steps[place].facts)
        if (failed := self._run(self._calls, self._count)) >= 0:
            raise IndexError(
                f"an id is no row of the embedding (call {failed} of {self._count} of a recorded "
                "step)"
            )
        return self._out

    def _layer(self, facts: Any) -> Any:
        if facts.starts not in self._places:
            raise Unrecordable("a layer attends by a plan that is none of the step's")
        return facts

    def _again(self, number: int, layer: Any) -> list[int]:
        """Return the words of attention in another step: where the layer's facts are, and where
        those of the step.
        """
        place = self._places[layer.starts]
        for name, kind in layer._fields_:
            if kind is ctypes.c_void_p:
                setattr(layer, name, self._arena.moved(number, getattr(layer, name) or 0))
        return [ctypes.addressof(layer), ctypes.addressof(self._steps) + place * _POINTER]


def _places(steps: Sequence[Any]) -> dict[int, int]:
    """Return where each plan stands first, by the address of its starts."""
    places: dict[int, int] = {}
    for place, step in enumerate(steps):
        if isinstance(step, AttentionStep):
            places.setdefault(step.facts.starts, place)
    return places


def _pointers(name: str, arguments: tuple[Any, ...]) -> list[int]:
    """Return all addresses that a call is given."""
    if name == ATTENTION:
        layer = arguments[0]
        return [
            getattr(layer, field) or 0 for field, kind in layer._fields_ if kind is ctypes.c_void_p
        ]
    kinds = SIGNATURES[name]
    return [
        each or 0 for kind, each in zip(kinds, arguments, strict=True) if kind is ctypes.c_void_p
    ]


def _words(number: int, name: str, arguments: tuple[Any, ...], arena: Arena) -> list[int]:
    def word(kind: Any, argument: Any) -> int:
        if kind is ctypes.c_void_p:
            return arena.moved(number, argument or 0)
        return (
            int.from_bytes(struct.pack("=f", argument), "little")
            if kind is ctypes.c_float
            else int(argument)
        )

    return [
        word(kind, argument) for kind, argument in zip(SIGNATURES[name], arguments, strict=True)
    ]
