"""Wire formats of pooled numbers: JSON, bytes in a dtype and byte order, base64, bits."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from builtin_plugins.routes.embeddings.fields import ByteOrder
from core.api.outputs import Pooled


def array_of(pooled: Pooled) -> npt.NDArray[np.float32]:
    """Return the numbers as an array of their shape."""
    return np.frombuffer(pooled.data, np.float32).reshape(pooled.shape)


def as_json(pooled: Pooled) -> msgspec.Raw:
    """Return the numbers as JSON text: a list, or a list for each token."""
    return msgspec.Raw(msgspec.json.encode(array_of(pooled).tolist()))


def as_bytes(pooled: Pooled, dtype: str = "float32", endianness: ByteOrder = "native") -> bytes:
    """Return the numbers in a dtype and a byte order."""
    numbers: npt.NDArray[Any] = np.frombuffer(pooled.data, np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):  # numbers too large for the dtype become infinite
            numbers = numbers.astype(np.float16)
    elif dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        numbers = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(
            np.uint16
        )  # to the nearest, ties to even
    return numbers.astype(numbers.dtype.newbyteorder(endianness), copy=False).tobytes()


def as_base64(pooled: Pooled, dtype: str = "float32", endianness: ByteOrder = "native") -> str:
    """Return the numbers as `as_bytes`, in base64."""
    return base64.b64encode(as_bytes(pooled, dtype, endianness)).decode()


def as_bits(pooled: Pooled, *, signed: bool) -> list[int]:
    """Return the signs as bits, eight per byte, the first one highest; a set bit is non-negative.

    Signed bytes are unsigned ones minus 128, as in Cohere's API.
    """
    encode_reasoning = np.packbits(np.frombuffer(pooled.data, np.float32) >= 0).astype(np.int16)
    found: list[int] = (encode_reasoning - 128 if signed else encode_reasoning).tolist()
    return found


def cosine(first: Pooled, second: Pooled) -> float:
    """Return the cosine similarity of two embeddings; 0 if one is all zeros."""
    a, b = (np.frombuffer(each.data, np.float32).astype(np.float64) for each in (first, second))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0
