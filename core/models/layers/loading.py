"""Builds and loads a model, with architecture, quantization method and loader from the registry.

Every error of a checkpoint becomes one `ModelError` block: what is wrong, where, what to do.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from core.config import EngineConfig
from core.config.sections import CacheConfig
from core.contracts.attention import AttentionBackend
from core.contracts.models import BuildContext, Model, ModelSource, ModuleSpec, WeightLoader
from core.contracts.registry import Registry
from core.contracts.workers import LoadedParts
from core.errors import ModelError, did_you_mean
from core.model_spec.attention import LatentAttentionSpec
from core.model_spec.decoder import DecoderSpec
from core.model_spec.kv import RecurrentState
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.dtypes import dtype_name
from core.models.layers.decoder import Decoder
from core.models.layers.kv_cache import DTYPE_ALIASES, ONE_BYTE_DTYPES
from core.models.layers.quantization import (
    check_options,
    pass_checkpoint_dtypes,
    plain_weights,
    quant_method,
)
from core.models.layers.weights import WeightMap, check_finite
from core.models.ops.table import choose_ops
from core.plugin import Registered

log = logging.getLogger(__name__)

ANY = "any architecture"
"""Capability of entries that build any architecture."""
STATE_FIELDS: Final = ("mamba_cache_dtype", "mamba_ssm_cache_dtype")
"""Settings of recurrent layers without an effect on others."""
WINDOWS: Final = {"sliding_window": "window", "attention_chunk_size": "chunk"}
"""Windows that a config.json may state, and their attributes of attention layers."""
DEFAULT_CACHE: Final = CacheConfig()
NATIVE = ("native", "vllm")
"""Values of `--model-impl` for an architecture's own entry; "vllm" is vLLM's name."""


def load_model(
    config: EngineConfig,
    source: ModelSource,
    registry: Registry,
    *,
    device: str,
    dtype: torch.dtype,
    attention: AttentionBackend,
    group: ParallelGroup,
    pipeline: Pipeline,
    facts: Mapping[str, Any] | None = None,
    is_companion: bool = False,
) -> tuple[Model, BuildContext]:
    """Return the loaded model and its build context.

    `facts` are the platform's, for the choice of op implementations. A companion model need not
    use every setting. Raises `ModelError` with one block for any error of the checkpoint.
    """
    started = time.monotonic()
    spec, _ = read_model(config, source, registry)
    with _error_block(source):
        known = {**(facts or {}), "device": device, "dtype": dtype_name(dtype)}
        context = BuildContext(
            dtype=dtype,
            device=device,
            attention=attention,
            quant=quant_method(config, source, registry),
            ops=choose_ops(registry, known),
            group=group,
            pipeline=pipeline,
            conv_state_dtype=config.cache.mamba_cache_dtype,
            state_dtype=config.cache.mamba_ssm_cache_dtype,
            kv_dtype=config.cache.kv_cache_dtype,
            kv_scaled=config.cache.calculate_kv_scales,
            plain=plain_weights(config, registry, known),
        )
        if not is_companion:
            check_options(context.quant, config, registry)
        loader = weight_loader(config, source, registry)
        if isinstance(spec, DecoderSpec) and hasattr(loader, "headers"):
            pass_checkpoint_dtypes(context.quant, spec.names, loader.headers())
        model = _build(spec, context)
        _report_unused_windows(spec, source)
        is_whole = not is_companion and pipeline.size == 1
        if is_whole:
            _check_quantized(context.quant)
        if model.kv_layers:
            check_cached(model, config, is_whole=is_whole)
        _expect(loader, model)
        _select(loader, model)
        tensors = check_finite(
            _with_progress(loader, config.load.use_tqdm_on_load), loader, source.path or source.name
        )
        waits_for_weights = not model.kv_layers  # transformers' modules find their caches then
        model.load_weights(tensors)
        if waits_for_weights:
            check_cached(model, config, is_whole=is_whole)
    log.info("%s loaded in %.1f s", source.name, time.monotonic() - started)
    return model, context


def load_companion_model(
    config: EngineConfig, source: ModelSource, registry: Registry, parts: LoadedParts
) -> Model:
    """Return a second model, for the device, dtype, backend and rank of `parts.model`.

    Raises like `load_model`.
    """
    built = parts.context
    model, _ = load_model(
        config,
        source,
        registry,
        device=built.device,
        dtype=built.dtype,
        attention=built.attention,
        group=built.group,
        pipeline=built.pipeline,
        facts=parts.facts,
        is_companion=True,
    )
    return model


def read_model(
    config: EngineConfig, source: ModelSource, registry: Registry
) -> tuple[DecoderSpec | ModuleSpec, Registered]:
    """Return the model spec for the served context length, and its runner.

    Reads no weight. Raises `ModelError` with one block for a config that cannot be served.
    """
    with _error_block(source):
        chosen = _architecture(config, source, registry)
        architecture = registry.load(chosen)
        try:
            with registry.blame(chosen):
                found: DecoderSpec | ModuleSpec = architecture(source.hf_config)
        except ModelError as error:
            if ANY not in chosen.entry.gives or chosen.entry.name == config.model.model_impl:
                raise
            raise ModelError(
                f"{_unknown(source, registry)} {chosen.entry.name}, for any other: {error}"
            ) from error
        spec, runner = _settle(found, config, source, registry)
        _check_ends(source, spec)
        served = config.model.max_model_len
        if hasattr(spec, "max_positions") and served is not None and served > 0:
            if 0 < spec.learned_positions < served:
                raise ModelError(
                    f"--max-model-len: got {served}; expected up to {spec.learned_positions}, the "
                    "learned positions of the model."
                )
            spec = replace(spec, max_positions=served)
        if config.options.get("enable_expert_parallel") and isinstance(spec, DecoderSpec):
            spec = spec.with_expert_placement(config.options["expert_placement_strategy"])
        return spec, runner


def _check_ends(source: ModelSource, spec: DecoderSpec | ModuleSpec) -> None:
    """Raise `ModelError` for an end token outside of the vocabulary, which would never be
    sampled. Pooling models sample none, and some configs of SigLIP have CLIP's.
    """
    missing = [token for token in source.eos_token_ids if token >= spec.vocab_size]
    if missing and getattr(spec, "pooling", None) is None:
        raise ModelError(
            f"eos_token_id is {missing[0]}, which is no token of the vocabulary: it has "
            f"{spec.vocab_size}, from 0 to "
            f"{spec.vocab_size - 1}. Correct it where the model states it, or set it with "
            "--hf-overrides."
        )


def _settle(
    found: DecoderSpec | ModuleSpec, config: EngineConfig, source: ModelSource, registry: Registry
) -> tuple[Any, Registered]:
    """Return the spec settled by the first runner, by priority, that accepts the model."""
    if config.model.runner != "auto":
        registry.choose("runners", config.model.runner)  # raises with the list of runners
    for registered, runner in _runners(registry):
        with registry.blame(registered):
            spec = runner.adapt_spec(found, config, source)
        if spec is not None:
            return spec, registered
    raise ModelError(f"no loaded runner accepts the model (--runner {config.model.runner}).")


def _runners(registry: Registry) -> Iterator[tuple[Registered, Any]]:
    """Yield the available runners, by priority."""
    for candidate in registry.rank("runners"):
        if not candidate.reason:
            yield candidate.registered, registry.load(candidate.registered, probe=True)(registry)


def _architecture(config: EngineConfig, source: ModelSource, registry: Registry) -> Registered:
    """Return the entry that builds the model, by `--model-impl`: its own or a general one."""
    entries: dict[str, Registered] = {
        registered.entry.name: registered for registered in registry.entries("models")
    }
    general = sorted(
        (r for r in entries.values() if ANY in r.entry.gives), key=lambda r: -r.entry.priority
    )
    choice = config.model.model_impl
    others = (
        name for _, runner in _runners(registry) for name in runner.aliases(source.architecture)
    )
    own = next((entries[name] for name in (source.architecture, *others) if name in entries), None)
    if choice in (r.entry.name for r in general):
        return entries[choice]
    if choice not in NATIVE and choice != "auto":
        names = ["auto", *NATIVE, *(r.entry.name for r in general)]
        raise ModelError(f"--model-impl {choice!r} is not loaded; available: {', '.join(names)}.")
    if own is None and (choice in NATIVE or not general):
        raise ModelError(_unknown(source, registry))
    return own or general[0]


def _unknown(source: ModelSource, registry: Registry) -> str:
    known = (r.entry.name for r in registry.entries("models") if ANY not in r.entry.gives)
    return (
        f"no loaded plugin knows the architecture {source.architecture!r}"
        f"{did_you_mean(source.architecture, known, limit=3) or '.'} `engine models` lists those "
        f"known. {_parts(source)}"
        "Install a plugin that provides it, or correct `architectures` with --hf-overrides."
    )


def _parts(source: ModelSource) -> str:
    """Return a note for multi-part models: their text part may be a known architecture."""
    if getattr(source.hf_config, "text_config", None) is None:
        return ""
    return (
        "Its config.json describes several parts (text_config among others), and the text part is "
        "not served alone. "
    )


def _build(spec: DecoderSpec | ModuleSpec, context: BuildContext) -> Model:
    """Return the model without weights; its memory is reserved but not touched."""
    try:
        return Decoder(spec, context) if isinstance(spec, DecoderSpec) else spec.build(context)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the model its config.json describes cannot be built: {reason}. Check its sizes "
            "against the checkpoint's "
            "own config.json and against the memory of this machine."
        ) from error


def check_cached(model: Model, config: EngineConfig, *, is_whole: bool = True) -> None:
    """Raise `ModelError` if no layer uses a setting of the cache.

    A companion model, or one stage of several, is not whole: it need not use every setting.
    """
    cache = config.cache
    flag = cache.kv_cache_dtype
    specs = [layer.spec for layer in model.kv_layers]
    dtypes = {spec.dtype for spec in specs if not isinstance(spec, RecurrentState)}
    if (dtypes or is_whole) and flag != "auto" and DTYPE_ALIASES.get(flag, flag) not in dtypes:
        supported = ", ".join(sorted(dtypes)) or "none, it caches no keys and values"
        raise ModelError(
            f"--kv-cache-dtype {flag}: no layer of this model supports it (supported: "
            f"{supported}); remove the flag."
        )
    if not is_whole:
        return
    if cache.calculate_kv_scales and not dtypes & {*ONE_BYTE_DTYPES}:
        raise ModelError(
            "--calculate-kv-scales: got True; expected a KV cache of one byte per value, not "
            f"{', '.join(sorted(dtypes)) or 'none'}. Add --kv-cache-dtype fp8, or remove it."
        )
    if any(isinstance(spec, RecurrentState) for spec in specs):
        return
    for name in STATE_FIELDS:
        value = getattr(cache, name)
        if value != getattr(DEFAULT_CACHE, name):
            raise ModelError(
                f"--{name.replace('_', '-')}: got {value!r}; expected a model with recurrent "
                "layers, and this one has none. Remove it."
            )


def _check_quantized(quant: Any) -> None:
    """Raise `ModelError` if the quantization method of the flag applies to no layer."""
    check_used: Callable[[], None] | None = getattr(quant, "check_used", None)
    if check_used is not None:
        check_used()


def _report_unused_windows(spec: DecoderSpec | ModuleSpec, source: ModelSource) -> None:
    """Log a window of the config that no layer has, as in transformers' class of the model."""
    if not isinstance(spec, DecoderSpec):
        return
    config = getattr(source.hf_config, "text_config", None) or source.hf_config
    stated = config if isinstance(config, Mapping) else vars(config)
    if stated.get("use_sliding_window") is False:
        return
    own = [layer.attention for layer in spec.layers if layer.attention is not None]
    for key, name in WINDOWS.items():
        size = stated.get(key)
        if size and not any(getattr(layer, name, None) for layer in own):
            log.warning(
                "%s: config.json states %s %s; no layer of %s uses it, so all attention is full",
                *(source.name, key, size, source.architecture),
            )


def weight_loader(config: EngineConfig, source: ModelSource, registry: Registry) -> WeightLoader:
    """Return the weight loader of `--load-format`, or of the source."""
    choice = config.load.load_format
    chosen = registry.choose("weight_loaders", source.weight_loader if choice == "auto" else choice)
    loader: WeightLoader = registry.load(chosen)(source, config)
    return loader


def _expect(loader: WeightLoader, model: Model) -> None:
    """Pass the model's tensor shapes to a loader that generates tensors."""
    expect: Callable[[Mapping[str, tuple[int, ...]]], None] | None = getattr(loader, "expect", None)
    shapes: Callable[[], Mapping[str, tuple[int, ...]]] | None = getattr(
        model, "weight_shapes", None
    )
    if expect is not None:
        expect({} if shapes is None else shapes())


def _select(loader: WeightLoader, model: Model) -> None:
    """Let a loader read only the tensors that this rank's part of the model needs."""
    select: Callable[[Callable[[str], bool]], None] | None = getattr(loader, "select", None)
    weights = getattr(model, "weights", None)
    if select is not None and isinstance(weights, WeightMap):
        select(weights.reads)


def _with_progress(loader: WeightLoader, enabled: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the loader's tensors, with a progress bar on a terminal."""
    if not enabled or not sys.stderr.isatty():
        yield from loader.tensors()
        return
    with tqdm(
        total=loader.total_bytes() or None, unit="B", unit_scale=True, desc="loading weights"
    ) as bar:
        for name, tensor in loader.tensors():
            yield name, tensor
            bar.update(tensor.nbytes)


@contextmanager
def _error_block(source: ModelSource) -> Iterator[None]:
    """Add the model and its location to every `ModelError` raised inside."""
    try:
        yield
    except ModelError as error:
        where = f"{source.architecture}, from {source.path or source.origin}"
        raise ModelError(f"cannot serve {source.name}\n  {error}\n  model: {where}") from error


def attention_facts(spec: Any, config: EngineConfig) -> dict[str, Any]:
    """Return the features that an attention backend needs for this model."""
    common = {"kv_dtype": config.cache.kv_cache_dtype}
    if not isinstance(spec, DecoderSpec):
        return common
    layers = [layer.attention for layer in spec.layers if layer.attention is not None]
    own = [
        layer for layer in layers if layer.causal
    ]  # bidirectional layers use no cache and no backend

    def has(name: str) -> bool:
        return any(getattr(layer, name, None) for layer in own)

    return {
        **common,
        **{name: has(name) for name in ("window", "chunk", "softcap", "alibi", "sinks")},
        "distance_bias": has("relative"),
        "head_size": sorted({layer.head_size for layer in own}),
        "latent": any(isinstance(layer, LatentAttentionSpec) for layer in own),
        "sparse": has("sparse"),
        "cross": any(layer.cross is not None for layer in spec.layers),
    }


def weight_bytes(model: Any) -> int:
    """Return the bytes of all distinct parameters and buffers."""
    seen = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()]}
    return sum(seen.values())
