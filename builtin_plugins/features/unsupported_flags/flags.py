"""Flags of vLLM that are not served: parsed, but rejected when they request something.

A plugin that adds the feature contributes the options itself and replaces the entries here. A value
equal to vLLM's default, or one that disables the feature, is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from builtin_plugins.features.unsupported_flags.missing import MISSING
from builtin_plugins.features.unsupported_flags.not_needed import NOT_NEEDED
from core.api import Option, hookimpl

NEVER: Final[Mapping[str, str]] = {
    "logits_processor_pattern": "--logits-processor-pattern",
    "max_num_partial_prefills": "Concurrent Partial Prefill",
    "max_long_partial_prefills": "Concurrent Partial Prefill",
}
"""Options that vLLM itself rejects, with its feature name; scripts may match the message."""


def _any(*values: Any) -> Callable[[Any], bool]:
    """Return a predicate for these values."""
    return lambda value: value in values


NEUTRAL: Final[Mapping[str, Callable[[Any], bool]]] = {
    "swap_space": _any(0),
    "mm_processor_cache_type": _any("shm"),
    "mm_processor_device": _any("cpu"),
    "mm_hasher_algorithm": _any("sha256"),
    "cp_kv_cache_interleave_size": _any(1),
    "safetensors_load_strategy": _any("lazy"),
    **dict.fromkeys(
        ("disable_hybrid_kv_cache_manager", "disable_nccl_for_dp_synchronization"), _any(False)
    ),
    **dict.fromkeys(
        (
            "disable_cascade_attn",
            "skip_mm_profiling",
        ),
        lambda value: True,
    ),
}
"""Predicates for accepted non-default values: they disable a missing feature."""
MOVED: Final[Mapping[str, tuple[Any, Any, str]]] = {
    "guided_decoding_backend": (str | None, None, "backend"),
    "guided_decoding_disable_fallback": (bool, False, "disable_fallback"),
    "guided_decoding_disable_any_whitespace": (bool, False, "disable_any_whitespace"),
    "guided_decoding_disable_additional_properties": (bool, False, "disable_additional_properties"),
}
"""Renamed flags of older vLLM versions: type, default, and key of `--structured-outputs-config`."""


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of missing features, those that are not needed, and renamed ones."""
    missing = [
        _option(name, kind, default, feature, _refusal(name, feature))
        for feature, options in MISSING.items()
        for name, (kind, default) in options.items()
    ]
    not_needed = [
        _option(name, kind, default, NOT_NEEDED_HELP.format(reason), None)
        for reason, options in NOT_NEEDED.items()
        for name, (kind, default) in options.items()
    ]
    moved = [
        Option(name, kind, default, "", refuse=f"is now --structured-outputs-config.{key}.")
        for name, (kind, default, key) in MOVED.items()
    ]
    return missing + not_needed + moved


NOT_NEEDED_HELP: Final = "Not needed here, because {}"


def _option(name: str, kind: Any, default: Any, text: str, refusal: str | None) -> Option:
    refusal = refusal or f"{text[:1].lower()}{text[1:]}. Remove it."
    return Option(name, kind, default, text, refuse=refusal, neutral=NEUTRAL.get(name))


def _refusal(name: str, feature: str) -> str:
    never = NEVER.get(name)
    if never:
        return f"{never} is not supported. We recommend to remove {never} from your config."
    return f"{feature}: not part of this version. Remove it."
