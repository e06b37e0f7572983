"""The feature's settings, read from the config once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from core.api import ConfigError, EngineConfig

DEFAULT_LIMIT: Final = 999
"""Items of one modality in a prompt, as in vLLM."""
GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """Resolved settings."""

    limits: Mapping[str, int]
    """Largest number of items in a prompt, by modality."""
    processor_kwargs: Mapping[str, Any]
    """Keywords of the input processor for every request."""
    store_bytes: int
    """Size up to which processed tensors are kept for later requests."""
    cache_tokens: int
    """Size of the encoder cache in embeddings."""
    step_tokens: int
    """Embeddings that one step encodes, unless a single item is larger."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> Settings:
        """Return the settings. Raises `ConfigError`."""
        options = config.options
        budget = config.scheduler.max_num_batched_tokens or 0
        step_tokens = options.get("mm_encoder_step_tokens") or max(budget, 1024)
        return cls(
            limits=_limits(options.get("limit_mm_per_prompt") or {}),
            processor_kwargs=options.get("mm_processor_kwargs") or {},
            store_bytes=int(options.get("mm_processor_cache_gb", 4.0) * GIB),
            cache_tokens=options.get("mm_encoder_cache_tokens") or max(4 * step_tokens, 16384),
            step_tokens=step_tokens,
        )

    def limit(self, modality: str) -> int:
        """Return the largest number of items of a modality in a prompt."""
        return self.limits.get(modality, DEFAULT_LIMIT)


def _limits(given: Mapping[str, Any]) -> dict[str, int]:
    limits = {}
    for modality, value in given.items():
        count = value.get("count") if isinstance(value, Mapping) else value
        if type(count) is not int or count < 0:
            raise ConfigError(
                f"--limit-mm-per-prompt.{modality}: got {value!r:.80}; expected an integer of at "
                "least 0. Correct it."
            )
        limits[modality] = count
    return limits
