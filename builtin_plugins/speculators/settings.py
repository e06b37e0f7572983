"""`--speculative-config`: typed, checked once. Knows the names of all methods, not what they do."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from builtin_plugins.speculators.stated import method_of, read_stated, tokens_of, verifier_of
from core.api import ConfigError, EngineConfig, SpeculativeConfig, TokenTree, did_you_mean
from core.contracts.speculators import MOST_TOKENS

OPTION: Final = "speculative_config"
FLAG: Final = "--speculative-config"
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
"""Other names of methods, as vLLM knows them."""
IDLE: Final = ("enforce_eager", "disable_padded_drafter_batch", "disable_logprobs")
"""Keys of vLLM that say how its drafts are computed, and mean nothing here."""
DEFAULT_TOKENS: Final[Mapping[str, int]] = {"suffix": 24, "mtp": 3, "eagle": 3, "eagle3": 3}
"""`num_speculative_tokens` by method, where it is not 5."""


def settings_of(config: EngineConfig) -> SpeculativeConfig | None:
    """Return the settings of a configuration; None: nothing is guessed.

    Raises `ConfigError` naming the key.
    """
    given: dict[str, Any] = dict(config.options.get(OPTION) or {})
    if not given and verifier_of(read_stated(config.model.model)):
        given = {"model": config.model.model}
    if not given:
        return None
    tree = _tree(given.pop("speculative_token_tree", None), given.get("num_speculative_tokens"))
    known = {field.name: type(field.default) for field in fields(SpeculativeConfig)}
    values = {
        name: _typed(name, value, known)
        for name, value in given.items()
        if value is not None and name not in IDLE
    }
    if values.get("num_speculative_tokens") == 0:
        raise ConfigError(
            f"{FLAG}.num_speculative_tokens is 0: nothing would be guessed. Leave {FLAG} out, or "
            "say 1 or more."
        )
    method = _method(values)
    stated = read_stated(values.get("model", ""))
    tokens = (
        values.get("num_speculative_tokens") or tokens_of(stated) or DEFAULT_TOKENS.get(method, 0)
    )
    values |= {"method": method, "num_speculative_tokens": tokens if tree is None else len(tree)}
    if tree is not None and len(tree.paths) > 1:
        values["speculative_token_tree"] = tree.nodes
    settings = SpeculativeConfig(**values)
    if config.parallel.pipeline_parallel_size > 1:
        raise ConfigError(
            f"{FLAG} does not work with --pipeline-parallel-size "
            f"{config.parallel.pipeline_parallel_size}: only the last "
            "stage knows what was guessed right. Leave one of them out."
        )
    return settings


def _tree(given: Any, tokens: Any) -> TokenTree | None:
    """Return the tree that is stated; None: none is.

    Raises `ConfigError` for what is none, or has another number of tokens.
    """
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
            f"{key} {given!r:.100} is no list of nodes, each a tuple of numbers, such as [(0,), "
            "(1,), (0, 0)]."
        ) from None
    try:
        tree = TokenTree.of(nodes)
    except ValueError as error:
        raise ConfigError(f"{key} {given!r:.100} {error}.") from None
    if len(tree) > MOST_TOKENS:
        raise ConfigError(
            f"{key} has {len(tree)} nodes; at most {MOST_TOKENS} tokens are checked in a step."
        )
    if tokens not in (None, 0, len(tree)):
        raise ConfigError(
            f"{key} has {len(tree)} nodes, and {FLAG}.num_speculative_tokens is {tokens}: it is "
            "their number; leave it out."
        )
    return tree


def _typed(name: str, value: Any, known: Mapping[str, type]) -> Any:
    if name not in known:
        hint = did_you_mean(name, known)
        raise ConfigError(
            f"{FLAG} has no {name!r}{hint}{'' if hint else '; known: ' + ', '.join(known) + '.'}"
        )
    wanted = known[name]
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise ConfigError(f"{FLAG}.{name} must be of type {wanted.__name__}, not {value!r}.")
    return value


def _method(given: Mapping[str, Any]) -> str:
    """Return the method that is meant."""
    method = given.get("method", "")
    model = given.get("model", "")
    named = method or (
        "ngram" if model in ("ngram", "[ngram]") else method_of(read_stated(model)) if model else ""
    )
    if not named:
        raise ConfigError(
            f'{FLAG} names no method, such as {{"method": "ngram", "num_speculative_tokens": 5}}.'
        )
    return ALIASES.get(named, named)
