"""Engines for 32 small requests at once, and the ways in which these are run."""

from __future__ import annotations

from typing import Any

BASE: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 32,
    "dtype": "float32",
    "skip_tokenizer_init": True,
    "kv_cache_memory_bytes": 32 << 20,
    "block_size": 8,
    "num_threads": 1,
    "log_level": "error",
}
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "depth 2": {"async_scheduling": True},
    "a budget of 48 tokens": {"max_num_batched_tokens": 48},
    "few rows": {"max_num_seqs": 5},
}
