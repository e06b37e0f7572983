"""Takes down what a function has the library do, so that a program can do it again without Python
and torch.

Like the capture of a graph on a GPU: what lies in memory of its own is found by its address, views
are free, and work that is not the library's ends the recording.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, Protocol, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from core_kernels.arena import Made
from core_kernels.elementwise import ADD, MULTIPLY, RELU, SQUARE, arguments_of
from core_kernels.library import Library

Tensor = torch.Tensor

_ATEN: Final = torch.ops.aten
MAKES: Final = frozenset(
    {
        _ATEN.empty.memory_format,
        _ATEN.new_empty.default,
        _ATEN.empty_like.default,
        _ATEN.empty_strided.default,
    }
)
"""Give memory that nobody has written to."""
EXACT: Final = {
    _ATEN.add.Tensor: ADD,
    _ATEN.add_.Tensor: ADD,
    _ATEN.mul.Tensor: MULTIPLY,
    _ATEN.mul_.Tensor: MULTIPLY,
    _ATEN.relu.default: RELU,
    _ATEN.square.default: SQUARE,
}
"""What torch computes bit by bit as the library does."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Listens to the library and to torch while it is entered. Not for several threads at once."""

    def __init__(self, library: Library) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._library: Final = library
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.made: list[Made] = []
        """All memory the function took."""
        self.refused = ""
        """Why it cannot be done again; empty: it can."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # else the first op imports torch's compiler, for a second or two in the middle of a step
        return False

    def __enter__(self) -> Self:
        super().__enter__()  # type: ignore[no-untyped-call]
        self._library.listener = self
        return self

    def __exit__(self, *error: Any) -> None:
        self._library.listener = None
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def refuse(self, reason: str) -> None:
        """Note the first reason."""
        self.refused = self.refused or reason

    def called(self, name: str, arguments: tuple[Any, ...]) -> None:
        """Take a call of the library down; facts that it points to are copied, they change from
        call to call.
        """
        self.calls.append((name, tuple(map(_copied, arguments))))

    def _note(self, out: Tensor, behind: int = 0) -> None:
        """Take down what was made, before the call that is the last but so many."""
        if out.data_ptr():
            self.made.append(
                Made(len(self.calls) - behind, out.data_ptr(), out.untyped_storage().nbytes())
            )

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let torch do it; see whether it is anything that the library would have to do again."""
        del types
        out = func(*args, **(kwargs or {}))
        if func in MAKES:
            self._note(out)
        elif (
            func in EXACT
            and not kwargs
            and (arguments := _exactly(EXACT[func], out, args)) is not None
        ):
            self.called("core_elementwise", arguments)
            if not func._schema.is_mutable:
                self._note(out, behind=1)
        elif func._schema.is_mutable or not _all_lie_in(out, args):
            self.refuse(f"torch computes {func}")
        return out


def _copied(argument: Any) -> Any:
    facts = getattr(argument, "_obj", None)  # of what `byref` gives
    return type(facts).from_buffer_copy(facts) if isinstance(facts, ctypes.Structure) else argument


def _exactly(kind: int, out: Tensor, operands: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the arguments of the library's call for what torch has computed; of two operands
    either may be spread.
    """
    if isinstance(operands[0], torch.Tensor) and operands[0].shape == out.shape:
        return arguments_of(kind, out, *operands)
    return (
        arguments_of(kind, out, *reversed(operands))
        if isinstance(operands[-1], torch.Tensor)
        else None
    )


def _all_lie_in(out: Any, args: Sequence[Any]) -> bool:
    """Say whether what is returned lies in the memory of what was given; schemas call views what
    copies where it must.
    """
    memory = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
    returned = out if isinstance(out, (tuple, list)) else [out]
    return all(
        isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() in memory
        for each in returned
    )


class Refusing(Protocol):
    """Is told when what is recorded cannot be done again."""

    def refuse(self, reason: str) -> None:
        """Take note of it, or raise."""


class Untold:
    """A value that a recorded function may pass on but not read: it would be another one next time."""

    def __init__(self, name: str, value: Any, recording: Refusing) -> None:
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
            *(_told(each) for each in args),
            **{key: _told(each) for key, each in (kwargs or {}).items()},
        )


def _told(value: Any) -> Any:
    return value._read() if isinstance(value, Untold) else value
