"""Builds a model and fills it: architecture, quantization method and weight loader come from the
registry.

Every fault of a checkpoint leaves here as one `ModelError` block: what is wrong, where, what to do.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from core.config import EngineConfig
from core.contracts import (
    AttentionBackend,
    BuildContext,
    Model,
    ModelSource,
    ModuleSpec,
    WeightLoader,
)
from core.contracts.scheduling import LoadedParts
from core.errors import ModelError, did_you_mean
from core.model_spec.decoder import DecoderSpec
from core.model_spec.kv import RecurrentState
from core.model_spec.latent import LatentAttentionSpec
from core.models.layers.cached_as import MEANT
from core.models.layers.decoder import Decoder
from core.models.layers.finite import checked
from core.models.layers.parallel import ParallelGroup, Pipeline
from core.models.layers.quantization import plain_weights, quant_method, tell_stored
from core.models.ops.table import choose_ops
from core.plugin import Registered, Registry

log = logging.getLogger(__name__)

ANY = "any architecture"
"""What an entry gives that builds models of architectures without an entry of their own."""
NATIVE = ("native", "vllm")
"""Words of `--model-impl` for entries of the architecture's own name; the second is vLLM's."""


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
) -> tuple[Model, BuildContext]:
    """Return the source's model, ready to run, and what it was built with.

    `facts` are the platform's, for the choice of op implementations. Raises `ModelError` with one
    block for anything the checkpoint is to blame for.
    """
    started = time.monotonic()
    spec, _ = read_model(config, source, registry)
    with _as_block(source):
        known = {**(facts or {}), "device": device, "dtype": str(dtype).removeprefix("torch.")}
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
        loader = weight_loader(config, source, registry)
        if isinstance(spec, DecoderSpec) and hasattr(loader, "headers"):
            tell_stored(context.quant, spec.names, loader.headers())
        model = _build(spec, context)
        check_cached(model, config)
        _expect(loader, model)
        tensors = checked(
            _shown(loader, config.load.use_tqdm_on_load), loader, source.path or source.name
        )
        model.load_weights(tensors)
    log.info("%s loaded in %.1f s", source.name, time.monotonic() - started)
    return model, context


def load_alike(
    config: EngineConfig, source: ModelSource, registry: Registry, parts: LoadedParts
) -> Model:
    """Return the source's model for the device, dtype, attention backend and rank that
    `parts.model` was loaded for.

    Raises as `load_model` does.
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
    )
    return model


def read_model(
    config: EngineConfig, source: ModelSource, registry: Registry
) -> tuple[DecoderSpec | ModuleSpec, Registered]:
    """Return what the source's model is, made for the context length that is served, and the runner
    that takes it.

    Reads no weight. Raises `ModelError` with one block for a config that cannot be served.
    """
    with _as_block(source):
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
                    f"the model has learned {spec.learned_positions} positions, fewer than "
                    f"--max-model-len {served}; "
                    "lower it."
                )
            spec = replace(spec, max_positions=served)
        return spec, runner


def _check_ends(source: ModelSource, spec: DecoderSpec | ModuleSpec) -> None:
    """Raise `ModelError` for an end token the model does not have: no text would ever end."""
    missing = [token for token in source.eos_token_ids if token >= spec.vocab_size]
    if missing:
        raise ModelError(
            f"eos_token_id is {missing[0]}, which is no token of the vocabulary: it has "
            f"{spec.vocab_size}, from 0 to "
            f"{spec.vocab_size - 1}. Correct it where the model states it, or set it with "
            "--hf-overrides."
        )


def _settle(
    found: DecoderSpec | ModuleSpec, config: EngineConfig, source: ModelSource, registry: Registry
) -> tuple[Any, Registered]:
    """Return the model as the first runner takes it, by priority, that does."""
    if config.model.runner != "auto":
        registry.choose("runners", config.model.runner)  # which names what there is
    for registered, runner in _runners(registry):
        with registry.blame(registered):
            spec = runner.settle(found, config, source)
        if spec is not None:
            return spec, registered
    raise ModelError(f"no loaded runner takes it (--runner {config.model.runner}).")


def _runners(registry: Registry) -> Iterator[tuple[Registered, Any]]:
    """Yield the runners that can be used here, by priority."""
    for candidate in registry.rank("runners"):
        if not candidate.reason:
            yield candidate.registered, registry.load(candidate.registered, probe=True)(registry)


def _architecture(config: EngineConfig, source: ModelSource, registry: Registry) -> Registered:
    """Return the entry that builds the model: its own, or one for any architecture, as
    `--model-impl` says.
    """
    entries = {registered.entry.name: registered for registered in registry.entries("models")}
    general = sorted(
        (r for r in entries.values() if ANY in r.entry.gives), key=lambda r: -r.entry.priority
    )
    wanted = config.model.model_impl
    others = (
        name for _, runner in _runners(registry) for name in runner.aliases(source.architecture)
    )
    own = next((entries[name] for name in (source.architecture, *others) if name in entries), None)
    if wanted in (r.entry.name for r in general):
        return entries[wanted]
    if wanted not in NATIVE and wanted != "auto":
        names = ["auto", *NATIVE, *(r.entry.name for r in general)]
        raise ModelError(f"--model-impl {wanted!r} is not loaded; available: {', '.join(names)}.")
    if own is None and (wanted in NATIVE or not general):
        raise ModelError(_unknown(source, registry))
    return own or general[0]


def _unknown(source: ModelSource, registry: Registry) -> str:
    known = (r.entry.name for r in registry.entries("models") if ANY not in r.entry.gives)
    return (
        f"no loaded plugin knows the architecture {source.architecture!r}"
        f"{did_you_mean(source.architecture, known, most=3) or '.'} `engine models` lists those "
        f"known. {_parts(source)}"
        "Install a plugin that brings it, or correct `architectures` with --hf-overrides."
    )


def _parts(source: ModelSource) -> str:
    """Say of a model of several parts (text beside others) that it is one, since another of its
    name may be known.
    """
    if getattr(source.hf_config, "text_config", None) is None:
        return ""
    return "Its config.json describes several parts (text_config beside others), and the text part is not served alone. "


def _build(spec: DecoderSpec | ModuleSpec, context: BuildContext) -> Model:
    """Return the model without its weights; memory is reserved, not yet used."""
    try:
        return Decoder(spec, context) if isinstance(spec, DecoderSpec) else spec.build(context)
    except (RuntimeError, MemoryError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(
            f"the model its config.json describes cannot be built: {reason}. Check its sizes "
            "against the checkpoint's "
            "own config.json and against the memory of this machine."
        ) from error


def check_cached(model: Model, config: EngineConfig) -> None:
    """Raise `ModelError` where keys and values are to be cached in a dtype, and no layer does so."""
    asked = config.cache.kv_cache_dtype
    dtypes = {
        layer.spec.dtype for layer in model.kv_layers if not isinstance(layer.spec, RecurrentState)
    }
    if dtypes and asked != "auto" and MEANT.get(asked, asked) not in dtypes:
        raise ModelError(
            f"--kv-cache-dtype {asked}: none of its layers caches so, they keep "
            f"{', '.join(sorted(dtypes))}; leave it out."
        )


def weight_loader(config: EngineConfig, source: ModelSource, registry: Registry) -> WeightLoader:
    """Return the loader of `--load-format`, or of the source."""
    wanted = config.load.load_format
    chosen = registry.choose("weight_loaders", source.weight_loader if wanted == "auto" else wanted)
    loader: WeightLoader = registry.load(chosen)(source, config)
    return loader


def _expect(loader: WeightLoader, model: Model) -> None:
    """Tell a loader that makes its tensors up which ones the model wants."""
    expect: Callable[[Mapping[str, tuple[int, ...]]], None] | None = getattr(loader, "expect", None)
    shapes: Callable[[], Mapping[str, tuple[int, ...]]] | None = getattr(
        model, "weight_shapes", None
    )
    if expect is not None:
        expect({} if shapes is None else shapes())


def _shown(loader: WeightLoader, wanted: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the loader's tensors, with a progress bar when somebody watches."""
    if not wanted or not sys.stderr.isatty():
        yield from loader.tensors()
        return
    with tqdm(
        total=loader.total_bytes() or None, unit="B", unit_scale=True, desc="loading weights"
    ) as bar:
        for name, tensor in loader.tensors():
            yield name, tensor
            bar.update(tensor.nbytes)


@contextmanager
def _as_block(source: ModelSource) -> Iterator[None]:
    """Say of every `ModelError` inside which model it is about, and where that is."""
    try:
        yield
    except ModelError as error:
        where = f"{source.architecture}, from {source.path or source.origin}"
        raise ModelError(f"cannot serve {source.name}\n  {error}\n  model: {where}") from error


def attention_facts(spec: Any, config: EngineConfig) -> dict[str, Any]:
    """Return what an attention backend must be able to do for this model."""
    kept = {"kv_dtype": config.cache.kv_cache_dtype}
    if not isinstance(spec, DecoderSpec):
        return kept
    layers = [layer.attention for layer in spec.layers if layer.attention is not None]
    own = [layer for layer in layers if layer.causal]  # others keep nothing, and attend without us

    def has(name: str) -> bool:
        return any(getattr(layer, name, None) for layer in own)

    return {
        **kept,
        **{name: has(name) for name in ("window", "chunk", "softcap", "alibi", "sinks")},
        "distance_bias": has("relative"),
        "head_size": sorted({layer.head_size for layer in own}),
        "latent": any(isinstance(layer, LatentAttentionSpec) for layer in own),
        "cross": spec.encoder is not None,
    }


def weight_bytes(model: Any) -> int:
    """Return the bytes of all distinct parameters and buffers."""
    seen = {t.data_ptr(): t.nbytes for t in [*model.parameters(), *model.buffers()]}
    return sum(seen.values())
