"""Every automatic decision, made once, in one place, before anything heavy starts.

Takes the user's configuration with its gaps and returns one without, after plugins have seen the
decisions. Knows limits and defaults; knows no model family and no device.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

from core.config import EngineConfig
from core.contracts import ModelSource, Platform
from core.errors import ConfigError, ModelError, did_you_mean
from core.plugin import Registry

log = logging.getLogger(__name__)

OFFLINE_TOKENS = 4096
OFFLINE_SEQS = 256
SERVING_TOKENS = 2048
SERVING_SEQS = 128
MOST_ROOM = 1 << 30
SAME_DTYPE = {"float": "float32", "half": "float16"}
SCHEDULING = (
    "max_num_batched_tokens",
    "max_num_seqs",
    "max_mixed_prefill_tokens",
    "async_scheduling",
)


@dataclass(frozen=True, slots=True)
class Resolved:
    """A configuration without gaps, the model it is for, and the platform it runs on."""

    config: EngineConfig
    source: ModelSource
    platform: Platform
    context_is_chosen: bool
    """True when the user set the context length, so that it must not be cut to fit the memory."""


def resolve(config: EngineConfig, registry: Registry, *, serving: bool) -> Resolved:
    """Find the model, decide what was left open, let plugins change it, and return the result.

    Raises `ModelError` when nobody knows the model and `ConfigError` for settings that exclude each
    other.
    """
    from core.models.layers.loading import read_model  # lazy: torch is slow to import

    source = find_model(config, registry)
    spec, runner = read_model(config, source, registry)
    _check_split(config, spec, source)
    config = replace(config, model=replace(config.model, runner=runner.entry.name))
    config = registry.load(runner)(registry).fit(config, spec)
    source = _limited(config, source, spec)
    platform = _pick_platform(config, registry)
    decisions = _decide(config, source, platform, serving)
    changed = registry.resolve(decisions)
    return Resolved(
        _apply(config, {**decisions, **changed}),
        source,
        platform,
        config.model.max_model_len is not None,
    )


def find_model(config: EngineConfig, registry: Registry) -> ModelSource:
    """Return what the plugins know of the model. Raises `ModelError` when none knows it."""
    source = registry.find_model(config.model.model, config)
    if source is None:
        raise ModelError(
            f"no plugin knows the model {config.model.model!r}: it is no folder with a "
            "config.json, no hub id and no "
            "name of a plugin's own (such as `scripted:`). Check the spelling, and `engine plugins "
            "list` for what is on."
        )
    return source


def _num_ranks(config: EngineConfig) -> int:
    return config.parallel.tensor_parallel_size * config.parallel.pipeline_parallel_size


def _check_split(config: EngineConfig, spec: Any, source: ModelSource) -> None:
    """Raise `ConfigError` when the model cannot be spread over so many ranks, before any of them is
    started.
    """
    parallel = config.parallel
    if _num_ranks(config) == 1:
        return
    if parallel.distributed_executor_backend == "uni":
        raise ConfigError(
            f"--distributed-executor-backend uni runs one worker, not {_num_ranks(config)} ranks "
            f"(--tensor-parallel-size {parallel.tensor_parallel_size} times "
            "--pipeline-parallel-size "
            f"{parallel.pipeline_parallel_size}); leave it out, or choose mp."
        )
    check = getattr(spec, "check_split", None)
    if check is None:
        raise ConfigError(
            f"the architecture {source.architecture!r} does not say how it splits over ranks; "
            "leave out "
            "--tensor-parallel-size and --pipeline-parallel-size."
        )
    check(parallel.tensor_parallel_size, parallel.pipeline_parallel_size)


def _pick_platform(config: EngineConfig, registry: Registry) -> Platform:
    """Return the platform asked for, or the first available by priority."""
    wanted = config.device.device
    candidates = registry.entries("platforms")
    names = [registered.entry.name for registered in candidates]
    if wanted != "auto" and wanted not in names:
        raise ConfigError(
            f"unknown device {wanted!r}; available: "
            f"{', '.join(names) or 'none'}{did_you_mean(wanted, names)}"
        )
    for registered in sorted(candidates, key=lambda r: (-r.entry.priority, r.entry.name)):
        if wanted not in ("auto", registered.entry.name):
            continue
        platform: Platform = registry.load(registered, probe=True)()
        if platform.is_available():
            return platform
    raise ConfigError(
        f"no platform fits: asked for {wanted!r}, and none such finds a device here; registered: "
        f"{', '.join(names) or 'none'}. "
        "`engine doctor` says what there is and what torch was built for. Choose another --device, "
        "or load its platform plugin."
    )


def _decide(
    config: EngineConfig, source: ModelSource, platform: Platform, serving: bool
) -> dict[str, Any]:
    scheduler = config.scheduler
    max_model_len = _context_length(config.model.max_model_len, source)
    seqs = scheduler.max_num_seqs or (SERVING_SEQS if serving else OFFLINE_SEQS)
    tokens = scheduler.max_num_batched_tokens
    if tokens is None:
        tokens = SERVING_TOKENS if serving else OFFLINE_TOKENS
        if not scheduler.enable_chunked_prefill:
            tokens = max(tokens, max_model_len)
        tokens = min(tokens, seqs * max_model_len)
    elif not scheduler.enable_chunked_prefill and tokens < max_model_len:
        raise ConfigError(
            f"--max-num-batched-tokens {tokens} is smaller than the context of {max_model_len} "
            "tokens while chunked "
            "prefill is off, so long prompts could never start. Raise it, lower --max-model-len, "
            "or allow chunking."
        )
    if scheduler.max_num_seqs is None:
        seqs = min(seqs, tokens)
    if seqs * max_model_len > MOST_ROOM:
        raise ConfigError(
            f"--max-num-seqs {seqs} requests of --max-model-len {max_model_len} tokens are more "
            f"than {MOST_ROOM} tokens, for "
            "each of which there is a place from the start. Lower one of them."
        )
    mixed = scheduler.max_mixed_prefill_tokens
    if mixed is None:
        mixed = getattr(platform, "mixed_prefill_tokens", 0) if serving else 0
    dtype = SAME_DTYPE.get(config.model.dtype, config.model.dtype)
    return {
        "device": platform.name,
        "dtype": platform.pick_dtype(source.checkpoint_dtype) if dtype == "auto" else dtype,
        "max_model_len": max_model_len,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "max_mixed_prefill_tokens": mixed,
        "attention_backend": config.attention.attention_backend,
        "executor": config.parallel.distributed_executor_backend
        or ("uni" if _num_ranks(config) == 1 else "mp"),
        "async_scheduling": _schedules_ahead(scheduler.async_scheduling, platform),
    }


def _schedules_ahead(wanted: bool | None, platform: Platform) -> bool:
    """Return what the user says, else whether the platform computes one step while the next is
    prepared.
    """
    ahead: bool = getattr(platform, "overlaps", False)
    if wanted is None:
        does = "computes beside the host" if ahead else "does not compute beside the host"
        log.info(
            "scheduling ahead is %s: the platform %s %s",
            "on" if ahead else "off",
            platform.name,
            does,
        )
    return ahead if wanted is None else wanted


def _limited(config: EngineConfig, source: ModelSource, spec: Any) -> ModelSource:
    """Return the source with the context that the model's learned positions, and what is computed
    of it, allow.
    """
    wanted = config.model.max_model_len or -1
    positions = min(
        getattr(spec, "learned_positions", 0) or source.max_model_len, source.max_model_len
    )
    limit = getattr(spec, "context_limit", 0)
    if not 0 < limit < positions:
        return replace(source, max_model_len=positions)
    if wanted > limit:
        raise ConfigError(
            f"--max-model-len {wanted} is more than {limit}, {spec.limited_by}. Lower it."
        )
    log.warning(
        "%s: contexts of at most %d tokens instead of %d: %s",
        source.name,
        limit,
        positions,
        spec.limited_by,
    )
    return replace(source, max_model_len=limit)


def _context_length(wanted: int | None, source: ModelSource) -> int:
    if wanted is None or wanted == -1:
        return source.max_model_len
    if wanted > source.max_model_len:
        raise ConfigError(
            f"--max-model-len {wanted} is more than the {source.max_model_len} tokens "
            f"{source.name!r} was made for. "
            "Lower it, or raise the model's own limit with --hf-overrides if you know it holds."
        )
    return wanted


def _apply(config: EngineConfig, decisions: dict[str, Any]) -> EngineConfig:
    """Write decisions into the sections they belong to."""
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
