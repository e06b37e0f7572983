"""Records the library calls of a function, for replay without Python and torch.

Works like CUDA graph capture: the function's own allocations are found by address, views are free,
and an operation outside the library ends the recording.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, Protocol, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core_kernels.arena import Allocation
from core_kernels.elementwise import ADD, MULTIPLY, RELU, SQUARE, arguments_of
from core_kernels.library import Library

Tensor = torch.Tensor

_ATEN: Final = torch.ops.aten
ALLOCATING: Final = frozenset(
    {
        _ATEN.empty.memory_format,
        _ATEN.new_empty.default,
        _ATEN.empty_like.default,
        _ATEN.empty_strided.default,
    }
)
"""Operations that return uninitialized memory."""
EXACT_OPS: Final = {
    _ATEN.add.Tensor: ADD,
    _ATEN.add_.Tensor: ADD,
    _ATEN.mul.Tensor: MULTIPLY,
    _ATEN.mul_.Tensor: MULTIPLY,
    _ATEN.relu.default: RELU,
    _ATEN.square.default: SQUARE,
}
"""Operations that torch computes bitwise equal to the library."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to the library and to torch as a context manager. Not thread-safe."""

    def __init__(self, library: Library) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._library: Final = library
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.allocations: list[Allocation] = []
        """All memory that the function allocated."""
        self.refused = ""
        """Reason why it cannot be replayed; empty: it can."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # otherwise the first op imports torch's compiler, for 1 to 2 s in a step
        return False

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._library.listener = self
        return self

    def __exit__(self, *error: Any) -> None:
        self._library.listener = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def refuse(self, reason: str) -> None:
        """Store the first reason."""
        self.refused = self.refused or reason

    def called(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Record a library call; structs are copied, since they change from call to call."""
        self.calls.append((name, tuple(map(_copied, arguments))))

    def _record_allocation(self, out: Tensor, calls_before: int = 0) -> None:
        """Record an allocation, placed `calls_before` calls before the last one."""
        if out.data_ptr():
            self.allocations.append(
                Allocation(
                    len(self.calls) - calls_before, out.data_ptr(), out.untyped_storage().nbytes()
                )
            )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the torch operation; record it, or refuse it if the library cannot repeat it."""
        del types
        out = func(*args, **(kwargs or {}))
        if func in ALLOCATING:
            self._record_allocation(out)
        elif (
            func in EXACT_OPS
            and not kwargs
            and (arguments := _exactly(EXACT_OPS[func], out, args)) is not None
        ):
            self.called("core_elementwise", arguments)
            if not func._schema.is_mutable:
                self._record_allocation(out, calls_before=1)
        elif func._schema.is_mutable or not _all_lie_in(out, args):
            self.refuse(f"torch computes {func}")
        return out


def _copied(argument: Any) -> Any:
    facts = getattr(argument, "_obj", None)  # argument of `byref`
    return type(facts).from_buffer_copy(facts) if isinstance(facts, ctypes.Structure) else argument


def _exactly(kind: int, out: Tensor, operands: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the library's arguments for a computed torch operation; either operand may be
    broadcast.
    """
    if isinstance(operands[0], torch.Tensor) and operands[0].shape == out.shape:
        return arguments_of(kind, out, *operands)
    return (
        arguments_of(kind, out, *reversed(operands))
        if isinstance(operands[-1], torch.Tensor)
        else None
    )


def _all_lie_in(out: Any, args: Sequence[Any]) -> bool:
    """Return whether all results share memory with the arguments; some view schemas may copy."""
    memory = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
    returned = out if isinstance(out, (tuple, list)) else [out]
    return all(
        isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() in memory
        for each in returned
    )


class RefusalListener(Protocol):
    """Receives the reason when a recording cannot be replayed."""

    def refuse(self, reason: str) -> None:
        """Store the reason, or raise."""


class OpaqueValue:
    """A value that a recorded function may pass on but not read: it differs in the next step."""

    def __init__(self, name: str, value: Any, recording: RefusalListener) -> None:
        self._name = name
        self._value = value
        self._recording = recording

    def _read(self) -> Any:
        self._recording.refuse(f"{self._name} of a step are read")
        return self._value

    def __iter__(self) -> Any:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, key: Any) -> Any:
        return self._read()[key]

    def __bool__(self) -> bool:
        return bool(self._read())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._read(), name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return func(
            *(_unwrapped(each) for each in args),
            **{key: _unwrapped(each) for key, each in (kwargs or {}).items()},
        )


def _unwrapped(value: Any) -> Any:
    return value._read() if isinstance(value, OpaqueValue) else value
