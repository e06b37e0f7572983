"""Divides the KV memory, and reduces an unset context length to what fits."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from core.config import EngineConfig
from core.errors import ConfigError
from core.kv import plan_layout
from core.model_spec.kv import KVLayout
from core.step import WorkerInfo

log = logging.getLogger(__name__)

MIN_CONTEXT: Final = 32
"""Minimum context length; if fewer tokens fit, the cache is too small."""


def fit_memory(
    config: EngineConfig, info: WorkerInfo, *, cut_context: bool
) -> tuple[EngineConfig, KVLayout]:
    """Return the KV layout, and the configuration with a context length that fits.

    The context is reduced only with `cut_context`.
    """
    requested = context_length(config)

    def plan(length: int) -> KVLayout:
        prefix_caching = config.cache.enable_prefix_caching
        return plan_layout(
            info.layers,
            block_size=config.cache.block_size,
            memory_bytes=config.cache.kv_cache_memory_bytes or info.kv_memory_bytes,
            num_blocks=config.cache.num_gpu_blocks_override,
            max_model_len=length,
            max_num_seqs=config.scheduler.max_num_seqs or 1,
            max_num_batched_tokens=config.scheduler.max_num_batched_tokens,
            state_block_size=config.cache.mamba_block_size if prefix_caching else None,
        )

    try:
        return config, plan(requested)
    except ConfigError:
        if not cut_context:
            raise
    # Bisection: `fits` always fits, `too_long` never does.
    fits = MIN_CONTEXT
    too_long = requested
    layout = plan(fits)
    while too_long - fits > 1:
        middle = (fits + too_long) // 2
        try:
            layout = plan(middle)
            fits = middle
        except ConfigError:
            too_long = middle
    log.warning(
        "the KV cache holds %d tokens, so the context is cut to that from %d (--max-model-len)",
        fits,
        requested,
    )
    return replace(config, model=replace(config.model, max_model_len=fits)), layout


def context_length(config: EngineConfig) -> int:
    """Return the resolved context length."""
    if config.model.max_model_len is None:
        raise ConfigError(
            "the context length was not resolved; this is a fault of the engine, please report it."
        )
    return config.model.max_model_len
