"""Tensors of clients as plain data: safetensors, raw bytes with dtype and shape, or arrays.

Nothing here can run code: `torch.save` writes pickle, so its files are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from builtin_plugins.features.multimodal.media.encoded import read_base64
from core.api import InvalidRequest

DTYPES: Final = {"float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}
"""Size of a number in bytes, by dtype."""
FLOATS: Final = ("float32", "float16", "bfloat16")
_SAFETENSORS: Final = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64"}
_PICKLES: Final = (b"PK\x03\x04", b"\x80")
"""First bytes of files of `torch.save`, and of the older form."""
_EXPECTED: Final = (
    "expected a safetensors file in base64, or an object with data (base64), dtype and shape"
)


class ClientTensor(msgspec.Struct, frozen=True):
    """A tensor in row-major order."""

    dtype: str
    """One of `DTYPES`."""
    shape: tuple[int, ...]
    data: bytes

    def rows(self, start: int, end: int) -> ClientTensor:
        """Return some rows of the first axis."""
        size = len(self.data) // self.shape[0]
        return ClientTensor(
            self.dtype, (end - start, *self.shape[1:]), self.data[start * size : end * size]
        )

    def is_finite(self) -> bool:
        """Return whether all floats are finite."""
        import numpy as np  # lazy: heavy dependency

        exponent = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}[self.dtype]
        bits: Any = np.frombuffer(self.data, np.uint32 if self.dtype == "float32" else np.uint16)
        return not bool(((bits & exponent) == exponent).any())

    def flat(self) -> ClientTensor:
        """Return the tensor with two axes: all but the last one are merged."""
        return ClientTensor(self.dtype, (math.prod(self.shape[:-1]), self.shape[-1]), self.data)


def read_tensors(value: Any, name: str, field: str, max_bytes: int) -> dict[str, ClientTensor]:
    """Return the tensors of a client's value, by name; one without a name is `name`.

    Raises `InvalidRequest` for `field`.
    """
    if not isinstance(value, Mapping) or "data" in value:
        return _read(value, name, field, max_bytes)
    found: dict[str, ClientTensor] = {}
    for key, part in value.items():
        is_named = field.endswith(f".{key}")
        own = field if is_named else f"{field}.{key!s:.80}"
        found |= _read(part, f"{key}", own, max_bytes)
    return found


def _read(value: Any, name: str, field: str, max_bytes: int) -> dict[str, ClientTensor]:
    if isinstance(value, Mapping):
        return {name: _raw(value, field, max_bytes)}
    if not isinstance(value, (str, bytes, bytearray)):
        return {name: _from_array(value, field)}
    data = read_base64(value, field, max_bytes) if isinstance(value, str) else bytes(value)
    found = _from_safetensors(data, field)
    return {name: next(iter(found.values()))} if len(found) == 1 else found


def is_array(value: Any) -> bool:
    """Return whether a value is an array or a tensor of a Python caller."""
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _raw(value: Mapping[str, Any], field: str, max_bytes: int) -> ClientTensor:
    dtype = value.get("dtype")
    shape = value.get("shape")
    if dtype not in DTYPES:
        raise InvalidRequest(
            f"{field}.dtype", f"got {dtype!r:.80}; expected one of {', '.join(DTYPES)}. Convert it."
        )
    is_shape = isinstance(shape, (list, tuple)) and 0 < len(shape) <= 4
    if not is_shape or not all(type(size) is int and 0 < size < 2**31 for size in shape or ()):
        raise InvalidRequest(
            f"{field}.shape", f"got {shape!r:.80}; expected up to four sizes from 1. Correct it."
        )
    data = value.get("data")
    if not isinstance(data, str):
        raise InvalidRequest(f"{field}.data", f"got {type(data).__name__}; expected base64 text.")
    read = read_base64(data, f"{field}.data", max_bytes)
    expected = math.prod(shape or ()) * DTYPES[dtype]
    if len(read) != expected:
        raise InvalidRequest(
            f"{field}.data",
            f"got {len(read)} bytes for {dtype} of shape {list(shape or ())}; expected {expected}. "
            "Correct the shape.",
        )
    return ClientTensor(dtype, tuple(shape or ()), read)


def _from_safetensors(data: bytes, field: str) -> dict[str, ClientTensor]:
    import safetensors  # lazy: few requests have tensors

    deserialize: Any = safetensors.deserialize
    if data.startswith(_PICKLES):
        raise InvalidRequest(
            field, f"got a file of torch.save, which may hold code; {_EXPECTED}. Convert it."
        )
    try:
        parts = deserialize(data)
    except Exception as error:
        raise InvalidRequest(
            field, f"got bytes that are no safetensors file; {_EXPECTED}. Convert it."
        ) from error
    found = {}
    for name, part in parts:
        dtype = _SAFETENSORS.get(part["dtype"])
        if dtype is None or 0 in part["shape"]:
            raise InvalidRequest(
                field,
                f"got tensor {name!r:.80} of {part['dtype']} and shape {part['shape']}; expected "
                f"one of {', '.join(DTYPES)}, not empty. Convert it.",
            )
        found[name] = ClientTensor(dtype, tuple(part["shape"]), bytes(part["data"]))
    if not found:
        raise InvalidRequest(field, "got a safetensors file without tensors; expected one.")
    return found


def _from_array(value: Any, field: str) -> ClientTensor:
    """Return a tensor of torch or an array of numpy."""
    if not is_array(value):
        raise InvalidRequest(field, f"got {type(value).__name__}; {_EXPECTED}, or a tensor.")
    dtype = str(value.dtype).rpartition(".")[2]
    shape = tuple(value.shape)
    if dtype not in DTYPES or 0 in shape or not shape:
        raise InvalidRequest(
            field,
            f"got {dtype} of shape {list(shape)}; expected one of {', '.join(DTYPES)}, not empty. "
            "Convert it.",
        )
    if not hasattr(value, "untyped_storage"):
        return ClientTensor(dtype, shape, value.tobytes())
    import torch  # lazy: the caller has it, since the value is a tensor

    if value.layout != torch.strided:
        raise InvalidRequest(field, f"got a tensor of {value.layout}; expected a dense one.")
    numbers = value.detach().cpu().contiguous().view(torch.uint8)
    return ClientTensor(dtype, shape, numbers.numpy().tobytes())
