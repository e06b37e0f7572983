"""Resolves every automatic setting, once, before anything heavy starts.

Takes the user's configuration and returns a complete one, after plugins have seen the
decisions. Knows limits and defaults; knows no model family and no device.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final

from core.config import EngineConfig
from core.contracts.models import ModelSource
from core.contracts.platforms import Platform
from core.errors import ConfigError, ModelError, did_you_mean
from core.plugin import Registry

log = logging.getLogger(__name__)

OFFLINE_TOKENS: Final = 4096
OFFLINE_SEQS: Final = 256
SERVING_TOKENS: Final = 2048
SERVING_SEQS: Final = 128
MAX_ROW_TOKENS: Final = 1 << 30
"""Maximum number of token positions over all rows, which are allocated at the start."""
DTYPE_ALIASES: Final = {"float": "float32", "half": "float16"}
SCHEDULING: Final = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_mixed_prefill_tokens",
    "async_scheduling",
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A complete configuration, its model, and its platform."""

    config: EngineConfig
    source: ModelSource
    platform: Platform
    context_is_chosen: bool
    """True: the user set the context length, so it must not be reduced to fit the memory."""


def resolve(config: EngineConfig, registry: Registry, *, serving: bool) -> Resolved:
    """Find the model, resolve automatic settings, and let plugins change the
    decisions.

    Raises `ModelError` for an unknown model, `ConfigError` for settings that exclude
    each other.
    """
    # lazy: torch is slow to import
    from core.models.layers.loading import read_model

    source = find_model(config, registry)
    spec, runner = read_model(config, source, registry)
    _check_split(config, spec, source)
    config = replace(config, model=replace(config.model, runner=runner.entry.name))
    config = registry.load(runner)(registry).adapt_config(config, spec)
    source = _limit_context(config, source, spec)
    platform = _pick_platform(config, registry)
    decisions = _decide(config, source, platform, serving)
    changed = registry.resolve(decisions)
    resolved = _apply(config, {**decisions, **changed})
    return Resolved(resolved, source, platform, config.model.max_model_len is not None)


def find_model(config: EngineConfig, registry: Registry) -> ModelSource:
    """Return the model source of the configuration.

    Raises `ModelError` for an unknown model.
    """
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(
            f"no plugin knows the model {config.model.model!r}: it is no folder with a "
            "config.json, no hub id and no name of a plugin's own (such as `scripted:`). Check "
            "the spelling, and `engine plugins list` for what is on."
        )
    return source


def _num_ranks(config: EngineConfig) -> int:
    return config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size


def _check_split(config: EngineConfig, spec: Any, source: ModelSource) -> None:
    """Raise `ConfigError` if the model cannot be split over the ranks, before
    any rank starts.
    """
    parallel = config.parallel
    if _num_ranks(config) == 1:
        return
    if parallel.distributed_executor_backend == "uni":
        raise ConfigError(
            f"--distributed-executor-backend uni runs one worker, not {_num_ranks(config)} ranks "
            f"(--tensor-parallel-size {parallel.tensor_parallel_size} times "
            f"--pipeline-parallel-size {parallel.pipeline_parallel_size}); "
            "leave it out, or choose mp."
        )
    check = getattr(spec, "check_split", None)
    if check is None:
        raise ConfigError(
            f"the architecture {source.architecture!r} does not say how it splits over ranks; "
            "leave out --tensor-parallel-size and --pipeline-parallel-size."
        )
    check(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)


def _pick_platform(config: EngineConfig, registry: Registry) -> Platform:
    """Return the configured platform, or the first available one by priority."""
    device = config.device.device
    candidates = registry.entries("platforms")
    names = [registered.entry.name for registered in candidates]
    listed = ", ".join(names) or "none"
    if device != "auto" and device not in names:
        raise ConfigError(
            f"unknown device {device!r}; available: {listed}{did_you_mean(device, names)}"
        )
    for registered in sorted(candidates, key=lambda r: (-r.entry.priority, r.entry.name)):
        if device not in ("auto", registered.entry.name):
            continue
        platform: Platform = registry.load(registered, probe=True)()
        if platform.is_available():
            return platform
    raise ConfigError(
        f"--device: got {device!r}; no such platform finds a device (registered: {listed}). "
        "Choose another --device or load its platform plugin; `engine doctor` lists the devices "
        "and the build of torch."
    )


def _decide(
    config: EngineConfig, source: ModelSource, platform: Platform, serving: bool
) -> dict[str, Any]:
    """Return the decisions by name."""
    scheduler = config.scheduler
    max_model_len = _context_length(config.model.max_model_len, source)
    seqs = scheduler.max_num_seqs or (SERVING_SEQS if serving else OFFLINE_SEQS)
    budgets = (scheduler.max_num_batched_tokens, scheduler.max_num_scheduled_tokens)
    tokens = min((budget for budget in budgets if budget is not None), default=None)
    if tokens is None:
        tokens = SERVING_TOKENS if serving else OFFLINE_TOKENS
        if not scheduler.enable_chunked_prefill:
            tokens = max(tokens, max_model_len)
        tokens = min(tokens, seqs * max_model_len)
    elif not scheduler.enable_chunked_prefill and tokens < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is smaller than the context of {max_model_len} "
            "tokens while chunked prefill is off, so long prompts could never start. "
            "Raise it, lower --max-model-len, or allow chunking."
        )
    if scheduler.max_num_seqs is None:
        seqs = min(seqs, tokens)
    if seqs * max_model_len > MAX_ROW_TOKENS:
        raise ConfigError(
            f"--max-num-seqs {seqs} requests of --max-model-len {max_model_len} tokens are more "
            f"than {MAX_ROW_TOKENS} tokens, which are allocated at the start. Lower one of them."
        )
    mixed = scheduler.max_mixed_prefill_tokens
    if mixed is None:
        mixed = getattr(platform, "mixed_prefill_tokens", 0) if serving else 0
    dtype = DTYPE_ALIASES.get(config.model.dtype, config.model.dtype)
    if dtype == "auto":
        dtype = platform.pick_dtype(source.checkpoint_dtype)
    executor = config.parallel.distributed_executor_backend
    if not executor:
        executor = "uni" if _num_ranks(config) == 1 else "mp"
    return {
        "device": platform.name,
        "dtype": dtype,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "max_mixed_prefill_tokens": mixed,
        "attention_backend": config.attention.attention_backend,
        "executor": executor,
        "async_scheduling": _async_scheduling(config, platform),
    }


def _async_scheduling(config: EngineConfig, platform: Platform) -> bool:
    """Return the user's choice; default: on if something computes while the host works."""
    if config.scheduler.async_scheduling is not None:
        return config.scheduler.async_scheduling
    has_stages = config.parallel.pipeline_parallel_size > 1
    overlaps: bool = has_stages or getattr(platform, "overlaps", False)
    log.info(
        "asynchronous scheduling is %s: the %s %s its work with the host's",
        "on" if overlaps else "off",
        "pipeline" if has_stages else f"platform {platform.name}",
        "overlaps" if overlaps else "does not overlap",
    )
    return overlaps


def _limit_context(config: EngineConfig, source: ModelSource, spec: Any) -> ModelSource:
    """Return the source with the context that learned positions and the spec's limit allow."""
    chosen = config.model.max_model_len or -1
    learned = getattr(spec, "learned_positions", 0) or source.max_model_len
    positions = min(learned, source.max_model_len)
    limit = getattr(spec, "context_limit", 0)
    if not 0 < limit < positions:
        return replace(source, max_model_len=positions)
    if chosen > limit:
        raise ConfigError(
            f"--max-model-len {chosen} is more than {limit}, {spec.limited_by}. Lower it."
        )
    log.warning(
        "%s: maximum context of %d tokens instead of %d: %s",
        source.name,
        limit,
        positions,
        spec.limited_by,
    )
    return replace(source, max_model_len=limit)


def _context_length(chosen: int | None, source: ModelSource) -> int:
    if chosen is None or chosen == -1:
        return source.max_model_len
    if chosen > source.max_model_len:
        raise ConfigError(
            f"--max-model-len {chosen} is more than the {source.max_model_len} tokens "
            f"{source.name!r} was made for. Lower it, or raise the model's own limit with "
            "--hf-overrides if you know it holds."
        )
    return chosen


def _apply(config: EngineConfig, decisions: dict[str, Any]) -> EngineConfig:
    """Return the configuration with the decisions in their sections."""
    known = {*SCHEDULING, "max_model_len", "dtype", "attention_backend", "executor", "device"}
    unknown = sorted(set(decisions) - known)
    if unknown:
        raise ConfigError(
            f"a plugin decided {unknown[0]!r}, which is not a decision; there are {sorted(known)}."
        )
    return replace(
        config,
        model=replace(
            config.model, dtype=decisions["dtype"], max_model_len=decisions["max_model_len"]
        ),
        scheduler=replace(config.scheduler, **{name: decisions[name] for name in SCHEDULING}),
        attention=replace(config.attention, attention_backend=decisions["attention_backend"]),
        parallel=replace(config.parallel, distributed_executor_backend=decisions["executor"]),
        device=replace(config.device, device=decisions["device"]),
    )
