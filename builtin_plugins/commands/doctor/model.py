"""A model, examined: its settings, its tokenizer, and every number of its weights.

Nothing is computed with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from builtin_plugins.commands.doctor.finding import Finding, judge
from builtin_plugins.commands.sizes import show_bytes
from core.api import EngineConfig, EngineError, ModelError, ModelSource
from core.config.build import config_from_kwargs

SHOWN: Final = 6
"""Broken tensors that are named; there may be more."""


def check_model(context: Any, model: str) -> Iterator[Finding]:
    """Read everything of a folder or hub id; a fault of one part does not hide those of another."""
    from core.models.layers.loading import read_model  # lazy: torch is slow to import

    registry = context.registry
    config = config_from_kwargs({"model": model}, registry.options())
    try:
        source = registry.find_model(model, config)
        if source is None:
            raise ModelError(
                f"no plugin knows {model!r}: it is no folder with a config.json and no hub id."
            )
        spec, _ = read_model(config, source, registry)
    except EngineError as error:
        yield Finding("fail", "model", str(error))
        return
    size = f"{spec.vocab_size} tokens, context {source.max_model_len}"
    yield Finding(
        "ok", "model", f"{source.architecture}, {size}, ends with {list(source.eos_token_ids)}"
    )
    yield _tokenizer(config, source, registry)
    yield _weights(config, source, registry)


def _tokenizer(config: EngineConfig, source: ModelSource, registry: Any) -> Finding:
    try:
        tokenizer = registry.load(registry.choose("tokenizers", source.tokenizer))(source, config)
    except EngineError as error:
        return Finding("fail", "tokenizer", str(error))
    text = "none: token ids only" if tokenizer is None else f"{tokenizer.vocab_size} tokens"
    return judge("tokenizer", text, warn=tokenizer is None, advice="--tokenizer names another")


def _weights(config: EngineConfig, source: ModelSource, registry: Any) -> Finding:
    from core.models.layers.finite import is_finite, numbers_of  # lazy: torch is slow to import
    from core.models.layers.loading import weight_loader

    loader = weight_loader(config, source, registry)
    count = num_bytes = 0

    def broken() -> Iterator[str]:
        nonlocal count, num_bytes
        for name, tensor in loader.tensors():
            count = count + 1
            num_bytes = num_bytes + tensor.nbytes
            if not is_finite(numbers_of(tensor)):
                yield f"{name!r:.120} in {getattr(loader, 'reading', None) or source.name}"
            del tensor  # or its pages would stay while the next one is read

    try:
        found = list(islice(broken(), SHOWN))
    except EngineError as error:
        return Finding("fail", "weights", str(error))
    more = ", perhaps more" if len(found) == SHOWN else ""
    return judge(
        "weights",
        f"NaN or infinite numbers: {'; '.join(found)}{more}"
        if found
        else f"{count} tensors, {show_bytes(num_bytes)}, every number is finite",
        fail=bool(found),
        advice="Download the files again, or take another checkpoint",
    )
