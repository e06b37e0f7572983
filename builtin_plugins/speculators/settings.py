"""`--speculative-config`: typed, checked once. Knows the names of all methods, not what they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from core.api import ConfigError, EngineConfig, SpeculativeConfig, did_you_mean

OPTION: Final = "speculative_config"
FLAG: Final = "--speculative-config"
ALIASES: Final[Mapping[str, str]] = {
    "[ngram]": "ngram",
    **dict.fromkeys(
        ("deepseek_mtp", "ernie_mtp", "glm4_moe_mtp", "longcat_flash_mtp", "mimo_mtp", "pangu_ultra_moe_mtp"), "mtp"
    ),
    "qwen3_next_mtp": "mtp",
}
"""Other names of methods, as vLLM knows them."""
DEFAULT_TOKENS: Final[Mapping[str, int]] = {"suffix": 24}
"""`num_speculative_tokens` by method, where it is not 5."""
ABSENT: Final[Mapping[str, str]] = {
    "eagle": "heads that continue the model's hidden states",
    "eagle3": "heads that continue the model's hidden states",
    "medusa": "heads beside the model's own",
    "mlp_speculator": "heads that read the model's hidden states",
    "mtp": "the model's own layers for further tokens",
}
"""Methods that are known and not served, and what they need."""


def settings_of(config: EngineConfig) -> SpeculativeConfig | None:
    """Return the settings of a configuration; None: nothing is guessed. Raises `ConfigError` naming the key."""
    given: dict[str, Any] | None = config.options.get(OPTION)
    if not given:
        return None
    known = {field.name: type(field.default) for field in fields(SpeculativeConfig)}
    values = {name: _typed(name, value, known) for name, value in given.items() if value is not None}
    method = _method(values)
    tokens = values.get("num_speculative_tokens") or DEFAULT_TOKENS.get(method, 0)
    settings = SpeculativeConfig(**values | {"method": method, "num_speculative_tokens": tokens})
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"{FLAG} does not work with --pipeline-parallel-size {config.parallel.pipeline_parallel_size}: only the last "
            "stage knows what was guessed right. Leave one of them out."
        )
    return settings


def _typed(name: str, value: Any, known: Mapping[str, type]) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(f"{FLAG} has no {name!r}{hint}{'' if hint else '; known: ' + ', '.join(known) + '.'}")
    wanted = known[name]
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{FLAG}.{name} must be of type {wanted.__name__}, not {value!r}.")
    return value


def _method(given: Mapping[str, Any]) -> str:
    """Return the method that is meant. Raises `ConfigError` for one that is known and not served."""
    method, model = given.get("method", ""), given.get("model", "")
    named = method or ("ngram" if model in ("ngram", "[ngram]") else "draft_model" if model else "")
    if not named:
        raise ConfigError(f'{FLAG} names no method, such as {{"method": "ngram", "num_speculative_tokens": 5}}.')
    named = ALIASES.get(named, named)
    if named in ABSENT:
        raise ConfigError(
            f"{FLAG}.method {method!r} needs {ABSENT[named]}, which are not read in this version; use ngram or suffix, "
            "which need nothing, or draft_model."
        )
    return named
