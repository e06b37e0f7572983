"""Divides the KV memory before it is allocated, and cuts a context length that was left open to
what fits.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from core.config import EngineConfig
from core.errors import ConfigError
from core.kv import plan_layout
from core.model_spec.kv import KVLayout
from core.step import WorkerInfo

log = logging.getLogger(__name__)

SMALLEST_CONTEXT = 32
"""Below this many tokens an engine is of no use, so the cache is called too small instead."""


def fit_memory(
    config: EngineConfig, info: WorkerInfo, *, cut_context: bool
) -> tuple[EngineConfig, KVLayout]:
    """Divide the KV memory.

    A context length the user left open, or that is more than a fixed number of blocks holds, is cut
    to what fits.
    """
    most = context_length(config)

    def plan(length: int) -> KVLayout:
        return plan_layout(
            info.layers,
            block_size=config.cache.block_size,
            memory_bytes=config.cache.kv_cache_memory_bytes or info.kv_memory_bytes,
            num_blocks=config.cache.num_gpu_blocks_override,
            max_model_len=length,
            max_num_seqs=config.scheduler.max_num_seqs or 1,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            state_block_size=config.cache.mamba_block_size
            if config.cache.enable_prefix_caching
            else None,
        )

    try:
        return config, plan(most)
    except ConfigError:
        if not cut_context and config.cache.num_gpu_blocks_override is None:
            raise
    # low fits or the cache is too small at all; high does not fit
    low = SMALLEST_CONTEXT
    high = most
    layout = plan(low)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            low = middle
            layout = plan(middle)
        except ConfigError:
            high = middle
    log.warning(
        "the KV cache holds %d tokens, so the context is cut to that from %d (--max-model-len)",
        low,
        most,
    )
    return replace(config, model=replace(config.model, max_model_len=low)), layout


def context_length(config: EngineConfig) -> int:
    """Return the resolved context length."""
    if config.model.max_model_len is None:
        raise ConfigError(
            "the context length was not resolved; this is a fault of the engine, please report it."
        )
    return config.model.max_model_len
