"""Pooled numbers as they go over the wire: JSON, bytes in a dtype and byte order, bytes in base64,
bits.
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from builtin_plugins.routes.pooling.fields import ByteOrder
from core.api import Pooled


def array_of(pooled: Pooled) -> npt.NDArray[np.float32]:
    """Return the numbers in their shape."""
    return np.frombuffer(pooled.data, np.float32).reshape(pooled.shape)


def as_json(pooled: Pooled) -> msgspec.Raw:
    """Return the numbers as JSON text: a list, or a list for each token."""
    return msgspec.Raw(msgspec.json.encode(array_of(pooled).tolist()))


def as_bytes(pooled: Pooled, dtype: str = "float32", endianness: ByteOrder = "native") -> bytes:
    """Return the numbers in a dtype and a byte order."""
    numbers: npt.NDArray[Any] = np.frombuffer(pooled.data, np.float32)
    if dtype == "float16":
        with np.errstate(
            over="ignore"
        ):  # infinite, where it is too large for the dtype that was asked for
            numbers = numbers.astype(np.float16)
    elif dtype == "bfloat16":
        bits = numbers.view(np.uint32)
        numbers = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(
            np.uint16
        )  # to the nearest, ties to even
    return numbers.astype(numbers.dtype.newbyteorder(endianness), copy=False).tobytes()


def as_base64(pooled: Pooled, dtype: str = "float32", endianness: ByteOrder = "native") -> str:
    """Return those bytes in base64."""
    return base64.b64encode(as_bytes(pooled, dtype, endianness)).decode()


def as_bits(pooled: Pooled, *, signed: bool) -> list[int]:
    """Return eight numbers a byte: a bit is set where a number is not negative, the first one
    highest.

    Signed bytes are those bytes less 128, as Cohere has them.
    """
    packed = np.packbits(np.frombuffer(pooled.data, np.float32) >= 0).astype(np.int16)
    found: list[int] = (packed - 128 if signed else packed).tolist()
    return found


def cosine(first: Pooled, second: Pooled) -> float:
    """Return the cosine of the angle between two embeddings; 0 where one is nothing but zeros."""
    a, b = (np.frombuffer(each.data, np.float32).astype(np.float64) for each in (first, second))
    lengths = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / lengths if lengths else 0.0
