"""Paged attention: the arguments of a step, laid out as the library reads them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from core_kernels.row_ops import DTYPES

Tensor = torch.Tensor

_I32 = ctypes.c_int32
_I64 = ctypes.c_int64
_F32 = ctypes.c_float
_PTR = ctypes.c_void_p


CACHE_FORMATS: Final = {torch.int8: 1, torch.float8_e4m3fn: 2, torch.float8_e5m2: 3}
"""Format numbers of KV cache dtypes that differ from the dtype of keys and values."""


class _PagedAttention(ctypes.Structure):
    """`PagedAttention` of cpu/attention/attention.h."""

    _fields_ = (
        *((name, _PTR) for name in ("out", "query", "key", "value", "cache")),
        *((name, _PTR) for name in ("slots", "starts", "lengths", "tables", "alibi", "sinks")),
        *((name, _I64) for name in ("num_slots", "sequences", "table_stride")),
        *((name, _I64) for name in ("heads", "kv_heads", "head_size", "block_size")),
        *(
            (name, _I64)
            for name in (
                "query_token",
                "query_head",
                "key_token",
                "key_head",
                "value_token",
                "value_head",
            )
        ),
        *((name, _I64) for name in ("window", "chunk")),
        *((name, _F32) for name in ("scale", "softcap")),
        *((name, _I32) for name in ("causal", "dtype")),
        *((name, _PTR) for name in ("order", "shared")),
        ("value_size", _I64),
        *((name, _PTR) for name in ("key_scale", "value_scale")),
        ("cache_format", _I64),
        ("slot_tokens", _PTR),
    )


class AttentionStep:
    """The sequences of one step, for all layers of a KV cache group.

    Not thread-safe.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: Tensor,
        slots: Tensor,
        block: int,
        slot_tokens: Tensor | None = None,
    ) -> None:
        """`tables` [sequences, blocks] int32, `slots` and `slot_tokens` [n] int64, as attention
        backends get them.
        """
        self._attend: Final = library.core_paged_attention
        self.tables = (
            tables if tables.shape[0] == 0 or tables.stride(1) == 1 else tables.contiguous()
        )
        self._slots = slots.contiguous()
        self._slot_tokens = None if slot_tokens is None else slot_tokens.contiguous()
        self.starts = np.asarray(starts, dtype=np.int64)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.facts: Final = _PagedAttention(
            slots=self._slots.data_ptr(),
            slot_tokens=None if self._slot_tokens is None else self._slot_tokens.data_ptr(),
            starts=self.starts.ctypes.data,
            lengths=self.lengths.ctypes.data,
            tables=self.tables.data_ptr(),
            num_slots=len(slots),
            sequences=len(lengths),
            table_stride=self.tables.stride(0),
            block_size=block,
        )
        self.order: Final = np.empty(len(lengths), dtype=np.int64)
        """Sequence ids, sorted so that shared prefixes are adjacent."""
        self.shared: Final = np.empty_like(self.order)
        """Number of positions that each sequence in that order shares with the next one."""
        self.facts.order = self.order.ctypes.data
        self.facts.shared = self.shared.ctypes.data
        library.core_plan_attention(ctypes.byref(self.facts), self.facts.order, self.facts.shared)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cache: Tensor,
        *,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        softcap: float | None = None,
        alibi: Tensor | None = None,
        sinks: Tensor | None = None,
        causal: bool = True,
        value_size: int | None = None,
        key_scale: Tensor | None = None,
        value_scale: Tensor | None = None,
    ) -> Tensor:
        """Write keys and values to the cache; return attention [tokens, heads, value size].

        query [tokens, heads, head_size], key and value [slots, or tokens with `slot_tokens`,
        kv_heads, head_size] and cache have one dtype. The cache may instead have a dtype of
        `CACHE_FORMATS`, with `key_scale` and `value_scale` [kv_heads], or with a scale stored after
        each vector. Scales, `alibi` and `sinks` [heads] are float32. With `value_size`, values are
        the first elements of the keys, and only keys are cached.
        """
        tokens, heads, size = query.shape
        query, key, value = (
            x if x.stride(2) == 1 or size == 1 else x.contiguous() for x in (query, key, value)
        )
        out = query.new_empty(tokens, heads, value_size or size)
        step = self.facts
        _set_tensors(step, out, query, key, value, cache)
        step.alibi = None if alibi is None else alibi.data_ptr()
        step.sinks = None if sinks is None else sinks.data_ptr()
        step.key_scale = None if key_scale is None else key_scale.data_ptr()
        step.value_scale = None if value_scale is None else value_scale.data_ptr()
        step.window = window or 0
        step.chunk = chunk or 0
        step.causal = causal
        step.scale = scale
        step.softcap = softcap or 0.0
        step.value_size = value_size or 0
        self._attend(ctypes.byref(step))
        return out


def _set_tensors(
    step: _PagedAttention, out: Tensor, query: Tensor, key: Tensor, value: Tensor, cache: Tensor
) -> None:
    """Set the addresses, dtypes and layout of a call's tensors."""
    step.out = out.data_ptr()
    step.query = query.data_ptr()
    step.key = key.data_ptr()
    step.value = value.data_ptr()
    step.cache = cache.data_ptr()
    step.dtype = DTYPES[query.dtype]
    step.cache_format = CACHE_FORMATS.get(cache.dtype, 0)
    step.heads = query.shape[1]
    step.kv_heads = key.shape[1]
    step.head_size = query.shape[2]
    step.query_token = query.stride(0)
    step.query_head = query.stride(1)
    step.key_token = key.stride(0)
    step.key_head = key.stride(1)
    step.value_token = value.stride(0)
    step.value_head = value.stride(1)
