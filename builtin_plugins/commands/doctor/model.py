"""Checks of a model: config, tokenizer, and every value of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from builtin_plugins.commands.doctor.finding import Finding, judge
from builtin_plugins.commands.sizes import show_bytes
from core.api import EngineConfig, EngineError, ModelError
from core.api.config import config_from_kwargs
from core.api.models import ModelSource

if TYPE_CHECKING:
    from core.api import CommandContext
    from core.api.plugins import LoadedRegistry

MAX_LISTED: Final = 6
"""Maximum number of broken tensors named."""


def check_model(context: CommandContext, model: str) -> Iterator[Finding]:
    """Check a local folder or hub id. Checks every part, even after a failure."""
    from core.models.layers.loading import read_model  # lazy: torch is slow to import

    registry = context.registry
    config = config_from_kwargs({"model": model}, registry.options())
    try:
        source = registry.find_model(model, config)
        if source is None:
            raise ModelError(
                f"model: got {model!r}; expected a folder with a config.json, or a hub id."
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


def _tokenizer(config: EngineConfig, source: ModelSource, registry: LoadedRegistry) -> Finding:
    try:
        tokenizer = registry.load(registry.choose("tokenizers", source.tokenizer))(source, config)
    except EngineError as error:
        return Finding("fail", "tokenizer", str(error))
    text = "none: token ids only" if tokenizer is None else f"{tokenizer.vocab_size} tokens"
    return judge("tokenizer", text, warn=tokenizer is None, advice="Set --tokenizer")


def _weights(config: EngineConfig, source: ModelSource, registry: LoadedRegistry) -> Finding:
    from core.models.layers.loading import weight_loader
    from core.models.layers.weights import is_finite, numbers_of  # lazy: torch is slow to import

    loader = weight_loader(config, source, registry)
    count = 0
    num_bytes = 0

    def broken() -> Iterator[str]:
        nonlocal count, num_bytes
        for name, tensor in loader.tensors():
            count += 1
            num_bytes += tensor.nbytes
            if not is_finite(numbers_of(tensor)):
                yield f"{name!r:.120} in {getattr(loader, 'reading', None) or source.name}"
            del tensor  # frees its pages before the next read

    try:
        found = list(islice(broken(), MAX_LISTED))
    except EngineError as error:
        return Finding("fail", "weights", str(error))
    more = ", perhaps more" if len(found) == MAX_LISTED else ""
    return judge(
        "weights",
        f"NaN or infinite values: {'; '.join(found)}{more}"
        if found
        else f"{count} tensors, {show_bytes(num_bytes)}, every value is finite",
        fail=bool(found),
        advice="Download the files again, or use another checkpoint",
    )
