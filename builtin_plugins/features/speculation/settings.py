"""Settings of speculative decoding: `--speculative-config`, checked once."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from builtin_plugins.features.speculation.head_config import (
    OPTION,
    method_of,
    read_head_config,
    tokens_of,
    verifier_of,
)
from builtin_plugins.speculators.api import MAX_DRAFT_TOKENS, SpeculativeConfig, TokenTree
from core.api import ConfigError, EngineConfig, did_you_mean

FLAG: Final = "--speculative-config"
SHORTCUTS: Final[Mapping[str, str]] = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
"""Options that set one key of the configuration, and the key."""
ALIASES: Final[Mapping[str, str]] = {
    "[ngram]": "ngram",
    **dict.fromkeys(
        (
            "deepseek_mtp",
            "ernie_mtp",
            "glm4_moe_mtp",
            "longcat_flash_mtp",
            "mimo_mtp",
            "pangu_ultra_moe_mtp",
        ),
        "mtp",
    ),
    "qwen3_next_mtp": "mtp",
}
"""vLLM's other names of methods."""
IGNORED_KEYS: Final[Mapping[str, tuple[bool, str]]] = {
    "enforce_eager": (False, "draft models follow --enforce-eager"),
    "disable_padded_drafter_batch": (False, "draft batches are never padded"),
    "disable_logprobs": (False, "log-probabilities of accepted tokens are always exact"),
}
"""vLLM's keys without an effect here: the accepted value, and why."""
HEADS: Final = ("eagle", "eagle3", "medusa", "mlp_speculator", "mtp")
BUILTIN: Final = ("ngram", "suffix", "draft_model", *HEADS)
KEYS_OF_METHODS: Final[Mapping[str, tuple[str, ...]]] = {
    "model": ("suffix", "draft_model", *HEADS),
    "revision": ("draft_model", *HEADS),
    "draft_tensor_parallel_size": ("draft_model", *HEADS),
    "max_model_len": ("draft_model",),
    "prompt_lookup_max": ("ngram",),
    "prompt_lookup_min": ("ngram",),
    "suffix_decoding_max_tree_depth": ("suffix",),
    "suffix_decoding_max_cached_requests": ("suffix",),
    "suffix_decoding_max_spec_factor": ("suffix",),
    "suffix_decoding_min_token_prob": ("suffix",),
}
"""Keys that only some of the builtin methods read."""
DEFAULT_TOKENS: Final[Mapping[str, int]] = {"suffix": 24, "mtp": 3, "eagle": 3, "eagle3": 3}
"""Default `num_speculative_tokens` of methods, if it is not 5."""


def settings_of(config: EngineConfig) -> SpeculativeConfig | None:
    """Return the settings; None: speculation is off. Raises `ConfigError` naming the key."""
    given = given_settings(config.options)
    if not given and verifier_of(read_head_config(config.model.model)):
        given = {"model": config.model.model}
    if not given:
        return None
    for key, (accepted, reason) in IGNORED_KEYS.items():
        value = given.pop(key, None)
        if value not in (None, accepted):
            raise ConfigError(
                f"{FLAG}.{key}: got {value!r:.80}; expected {accepted}: {reason}. Remove it."
            )
    tree = _tree(given.pop("speculative_token_tree", None), given.get("num_speculative_tokens"))
    known = {field.name: type(field.default) for field in fields(SpeculativeConfig)}
    values = {
        name: _typed(name, value, known) for name, value in given.items() if value is not None
    }
    if values.get("num_speculative_tokens") == 0:
        raise ConfigError(
            f"{FLAG}.num_speculative_tokens: got 0; expected 1 or more. Remove {FLAG} to disable "
            "speculation."
        )
    method = _method(values)
    _refuse_keys(method, values, config.parallel.tensor_parallel_size)
    head_config = read_head_config(values.get("model", ""))
    tokens = (
        values.get("num_speculative_tokens")
        or tokens_of(head_config)
        or DEFAULT_TOKENS.get(method, 0)
    )
    values["method"] = method
    values["num_speculative_tokens"] = tokens if tree is None else len(tree)
    if tree is not None and len(tree.paths) > 1:
        values["speculative_token_tree"] = tree.nodes
    settings = SpeculativeConfig(**values)
    stages = config.parallel.pipeline_parallel_size
    if stages > 1:
        raise ConfigError(
            f"{FLAG} does not work with --pipeline-parallel-size {stages}: only the last stage "
            "knows the accepted tokens. Remove one of them."
        )
    return settings


def _refuse_keys(method: str, values: Mapping[str, Any], num_ranks: int) -> None:
    """Raise `ConfigError` for a key that the method does not read."""
    defaults = {field.name: field.default for field in fields(SpeculativeConfig)}
    for key, methods in KEYS_OF_METHODS.items():
        value = values.get(key)
        names_method = key == "model" and value in (method, f"[{method}]")
        if value in (None, defaults[key]) or names_method or method not in BUILTIN:
            continue
        if method not in methods:
            raise ConfigError(
                f"{FLAG}.{key}: got {value!r:.80}; the method {method} does not read it (of the "
                f"methods {', '.join(methods)}). Remove it."
            )
        if key == "draft_tensor_parallel_size" and value != num_ranks:
            raise ConfigError(
                f"{FLAG}.{key}: got {value}; expected --tensor-parallel-size {num_ranks}, because "
                "all ranks share the layers. Remove it."
            )


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that are set. Raises `ConfigError` for one that is set twice."""
    given: dict[str, Any] = dict(options.get(OPTION) or {})
    for option, key in SHORTCUTS.items():
        value = options.get(option)
        if value is None:
            continue
        if key in given:
            flag = f"--{option.replace('_', '-')}"
            raise ConfigError(
                f"{flag}: got {value!r} next to {FLAG}.{key}; expected one of them. Remove {flag}."
            )
        given[key] = value
    return given


def _tree(given: Any, tokens: Any) -> TokenTree | None:
    """Return the given tree; None: none. Raises `ConfigError` for an invalid tree."""
    if given is None:
        return None
    key = f"{FLAG}.speculative_token_tree"
    try:
        listed = literal_eval(given) if isinstance(given, str) else given
        nodes = [tuple(node) for node in listed]
        if not nodes or any(type(step) is not int for node in nodes for step in node):
            raise TypeError
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise ConfigError(
            f"{key}: got {given!r:.100}; expected a list of tuples of integers, for example "
            "[(0,), (1,), (0, 0)]."
        ) from None
    try:
        tree = TokenTree.of(nodes)
    except ValueError as error:
        raise ConfigError(f"{key} {given!r:.100} {error}.") from None
    if len(tree) > MAX_DRAFT_TOKENS:
        raise ConfigError(f"{key}: got {len(tree)} nodes; expected up to {MAX_DRAFT_TOKENS}.")
    if tokens not in (None, 0, len(tree)):
        raise ConfigError(
            f"{key} has {len(tree)} nodes, but {FLAG}.num_speculative_tokens is {tokens}. Remove "
            "num_speculative_tokens: it is the number of nodes."
        )
    return tree


def _typed(name: str, value: Any, known: Mapping[str, type]) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"{FLAG} has no {name!r}{hint}{'' if hint else '; known: ' + ', '.join(known) + '.'}"
        )
    expected = known[name]
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected:
        raise ConfigError(f"{FLAG}.{name}: got {value!r}; expected type {expected.__name__}.")
    return value


def _method(given: Mapping[str, Any]) -> str:
    """Return the method: the given one, or the one of the model's checkpoint."""
    method = given.get("method", "")
    model = given.get("model", "")
    if not method and model in ("ngram", "[ngram]"):
        method = "ngram"
    if not method and model:
        method = method_of(read_head_config(model))
    if not method:
        raise ConfigError(
            f'{FLAG} needs a method, for example {{"method": "ngram", '
            '"num_speculative_tokens": 5}.'
        )
    return ALIASES.get(method, method)
