"""A context in which reading a device value back is an error: proof that a step never waits for its
device.

On a CPU such reads cost nothing and go unseen; here they raise, as they would stall an accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_OPS: Final = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::_unique2",
        "aten::equal",
        "aten::is_nonzero",
        "aten::masked_select",
        "aten::nonzero",
        "aten::unique_consecutive",
        "aten::unique_dim",
    }
)
"""Operations with a result, or a result shape, that the host must wait for."""
_METHODS: Final = frozenset(
    {
        torch.Tensor.__array__,
        torch.Tensor.cpu,
        torch.Tensor.item,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
    }
)
"""Ways out of a tensor that no operation shows."""


class ReadBack(AssertionError):
    """Something inside a step read a value back from the device."""


@contextmanager
def no_readback() -> Iterator[None]:
    """Raise `ReadBack` where `item`, `tolist`, `nonzero`, a mask as index or the like is used
    meanwhile.
    """
    with _Operations(), _Methods():  # type: ignore[no-untyped-call]
        yield


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func._schema.name
        if name in _OPS:
            raise ReadBack(f"{name} reads a device value back; a step must work without.")
        if (
            name == "aten::repeat_interleave"
            and func._overloadname != "self_int"
            and not (kwargs or {}).get("output_size")
        ):
            raise ReadBack(f"{name} by a tensor sums it on the host; state output_size.")
        if name in {"aten::index", "aten::index_put", "aten::index_put_"} and _has_mask(args[1]):
            raise ReadBack(
                f"{name} with a mask counts its true values on the host; use masked_fill or where."
            )
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _METHODS:
            raise ReadBack(f"Tensor.{func.__name__} copies to the host; a step must work without.")
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Sequence[torch.Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
