"""A recorded list of calls, replayed in one call of the library."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import Any, Final

import torch

from core_kernels.arena import Arena, ProgramMemory
from core_kernels.attention import AttentionStep
from core_kernels.library import SIGNATURES, Library
from core_kernels.recording import Recording

Tensor = torch.Tensor

WORDS: Final = 16
"""Words per call, as in cpu/program.h: the function's number, then its arguments."""
ATTENTION: Final = "core_paged_attention"
REPLAY: Final = "core_paged_attention_replay"
_POINTER: Final = ctypes.sizeof(ctypes.c_void_p)


class Unrecordable(ValueError):
    """The recording cannot be replayed; the message has the reason."""


class Program:
    """A replayable program. Not thread-safe."""

    def __init__(
        self,
        library: Library,
        recording: Recording,
        steps: Sequence[Any],
        out: Tensor,
        memory: ProgramMemory | None = None,
    ) -> None:
        """Build it from a recording. Raises `Unrecordable`.

        `steps` are the attention plans of the recorded step, `out` is its result. Layers that
        shared a plan share one in each run; unused plans may be anything. Programs that share a
        `memory` overwrite each other's results.
        """
        if recording.refused:
            raise Unrecordable(recording.refused)
        self._run: Final = library.core_program_run
        self._plan_indices: Final = _plan_indices(steps)
        self._steps: Final = (ctypes.c_void_p * max(1, len(steps)))()
        self._layers: Final = [
            self._layer(arguments[0]) for name, arguments in recording.calls if name == ATTENTION
        ]
        self._read: Final = {self._plan_indices[layer.starts] for layer in self._layers}
        arena = Arena(
            recording.allocations,
            [_pointers(*call) for call in recording.calls],
            out.data_ptr(),
            memory or ProgramMemory(),
        )
        result = arena.output_view(out)
        if result is None:
            raise Unrecordable("the result lies in preexisting memory")
        self._arena: Final = arena
        self._out: Final = result
        self._count: Final = len(recording.calls)
        self._calls: Final = (ctypes.c_int64 * (WORDS * self._count))()
        layers = iter(self._layers)
        for number, (name, arguments) in enumerate(recording.calls):
            words = [library.core_program_number((REPLAY if name == ATTENTION else name).encode())]
            words += (
                self._replay_words(number, next(layers))
                if name == ATTENTION
                else _words(number, name, arguments, arena)
            )
            if words[0] < 0 or len(words) > WORDS:
                raise Unrecordable(f"{name} is none of the calls that a program makes")
            self._calls[number * WORDS : number * WORDS + len(words)] = words

    def run(self, steps: Sequence[Any]) -> Tensor:
        """Replay with these plans; the next run overwrites the result.

        Raises `IndexError` for an out-of-range id of an embedding.
        """
        for index in self._read:
            self._steps[index] = ctypes.addressof(steps[index].facts)
        if (failed := self._run(self._calls, self._count)) >= 0:
            raise IndexError(
                f"an id is no row of the embedding (call {failed} of {self._count} of a recorded "
                "step)"
            )
        return self._out

    def _layer(self, facts: Any) -> Any:
        if facts.starts not in self._plan_indices:
            raise Unrecordable("a layer attends by a plan that is none of the step's")
        return facts

    def _replay_words(self, number: int, layer: Any) -> list[int]:
        """Return the words of a replayed attention: the addresses of the layer and of the step."""
        index = self._plan_indices[layer.starts]
        for name, kind in layer._fields_:
            if kind is ctypes.c_void_p:
                setattr(layer, name, self._arena.relocate(number, getattr(layer, name) or 0))
        return [ctypes.addressof(layer), ctypes.addressof(self._steps) + index * _POINTER]


def _plan_indices(steps: Sequence[Any]) -> dict[int, int]:
    """Return the first index of each plan, by the address of its starts."""
    indices: dict[int, int] = {}
    for index, step in enumerate(steps):
        if isinstance(step, AttentionStep):
            indices.setdefault(step.facts.starts, index)
    return indices


def _pointers(name: str, arguments: tuple[Any, ...]) -> list[int]:
    """Return all addresses among a call's arguments."""
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
            return arena.relocate(number, argument or 0)
        return (
            int.from_bytes(struct.pack("=f", argument), "little")
            if kind is ctypes.c_float
            else int(argument)
        )

    return [
        word(kind, argument) for kind, argument in zip(SIGNATURES[name], arguments, strict=True)
    ]
