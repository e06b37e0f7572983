"""Validates `--pooler-config` and applies it to a model's pooling."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from builtin_plugins.runners.pooling.long_texts import TextSplitter
from core.api import ConfigError, EngineConfig, ModelError, Registry, did_you_mean
from core.model_spec.pooling import PoolingSpec

_ACTIVATIONS: Final = ("use_activation", "normalize", "softmax", "activation")
_RENAMED: Final = {
    "logit_bias": "logit_mean",
    "logit_mean": "logit_mean",
    "logit_sigma": "logit_sigma",
    "step_tag_id": "step_tag_id",
}


def _is_integer(value: Any, least: int = 0) -> bool:
    return type(value) is int and value >= least


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_integer, value))


_NAME: Final = ("a name", lambda value: isinstance(value, str))
_SWITCH: Final = ("true or false", lambda value: isinstance(value, bool))
_COUNT: Final = ("an integer from 1", lambda value: _is_integer(value, 1))
_KEYS: Final[Mapping[str, tuple[str, Callable[[Any], bool]]]] = {
    "pooling_type": _NAME,
    "seq_pooling_type": _NAME,
    "tok_pooling_type": _NAME,
    **dict.fromkeys(_ACTIVATIONS, _SWITCH),
    "dimensions": _COUNT,
    "logit_bias": ("a number", _is_number),
    "logit_mean": ("a number", _is_number),
    "logit_sigma": ("a number but 0", lambda value: _is_number(value) and value != 0),
    "step_tag_id": ("an integer from 0", _is_integer),
    "returned_token_ids": ("a list of integers from 0", _are_tokens),
    "enable_chunked_processing": _SWITCH,
    "max_embed_len": _COUNT,
}
"""Expected value of each key, as text and as a check."""


def given_keys(user_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that are set. Raises `ConfigError` for an unknown one or a wrong value."""
    given = {name: value for name, value in user_config.items() if value is not None}
    for name, value in given.items():
        if name not in _KEYS:
            hint = did_you_mean(name, _KEYS)
            raise ConfigError(
                f"--pooler-config: {name!r} is not known{hint}. Known: {', '.join(_KEYS)}."
            )
        what, holds = _KEYS[name]
        if not holds(value):
            raise ConfigError(f"--pooler-config: {name} must be {what}, not {value!r}.")
    return given


def apply_pooler_config(
    spec: PoolingSpec, user_config: Mapping[str, Any], registry: Registry
) -> PoolingSpec:
    """Return the pooling spec with `--pooler-config` applied. Raises `ConfigError` with the key."""
    given = given_keys(user_config)
    _check_chunking(spec, given)
    changes: dict[str, Any] = {}
    for name in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
        if name in given:
            changes |= _pooler_called(name, given[name].lower(), registry)
    for name in _ACTIVATIONS:
        if name in given:
            # True selects the default, unless the files disable it.
            changes["output_activation"] = (
                "none"
                if not given[name]
                else None
                if spec.output_activation == "none"
                else spec.output_activation
            )
    if "dimensions" in given:
        changes |= {"dimensions": given["dimensions"], "matryoshka": True}
    changes |= {ours: given[name] for name, ours in _RENAMED.items() if name in given}
    if "returned_token_ids" in given:
        changes["returned_token_ids"] = tuple(given["returned_token_ids"])
    return replace(spec, **changes)


def check_columns(spec: PoolingSpec, size: int) -> None:
    """Raise `ConfigError` for dimensions or columns beyond the model's `size`."""
    if spec.dimensions is not None and (spec.task != "embed" or spec.dimensions > size):
        what = (
            f"the model's embeddings have {size}"
            if spec.task == "embed"
            else "this model gives scores"
        )
        raise ConfigError(f"--pooler-config: dimensions {spec.dimensions} is not possible; {what}.")
    if spec.returned_token_ids and (spec.task == "embed" or max(spec.returned_token_ids) >= size):
        what = (
            "this model gives embeddings"
            if spec.task == "embed"
            else f"the model's scores have {size} columns"
        )
        raise ConfigError(
            f"--pooler-config: returned_token_ids {list(spec.returned_token_ids)} are not there; "
            f"{what}."
        )


def text_splitter(config: EngineConfig, size: int) -> TextSplitter | None:
    """Return the splitter of texts above `size` tokens; None if it is disabled."""
    user_config = config.options.get("pooler_config") or {}
    return (
        TextSplitter(size, user_config.get("max_embed_len"))
        if user_config.get("enable_chunked_processing")
        else None
    )


def _check_chunking(spec: PoolingSpec, given: Mapping[str, Any]) -> None:
    on = given.get("enable_chunked_processing", False)
    max_len = given.get("max_embed_len")
    if on and spec.task != "embed":
        raise ConfigError(
            "--pooler-config: enable_chunked_processing is for embeddings; this model gives scores."
        )
    if max_len is not None and not on:
        raise ConfigError(
            f"--pooler-config: max_embed_len {max_len} is the longest text embedded in chunks; set "
            "enable_chunked_processing with it."
        )


def _pooler_called(key: str, name: str, registry: Registry) -> dict[str, Any]:
    found = [
        registry.load(registry.choose("poolers", part), probe=True).per_token
        for part in name.split("+")
    ]
    per_token: bool = any(found)
    if per_token and len(found) > 1:
        raise ConfigError(
            f"--pooler-config: {name!r} joins vectors of prompts with those of tokens; name one of "
            "a kind."
        )
    if key != "pooling_type" and per_token != key.startswith("tok"):
        raise ConfigError(
            f"--pooler-config: {key} {name!r} gives "
            f"{'many vectors' if per_token else 'one vector'}."
        )
    if per_token:
        return {"token_pooler": name, "per_token": key == "pooling_type"}
    return {"pooler": name, "per_token": False, "head_before_pooling": False}


def load_poolers(spec: PoolingSpec, registry: Registry) -> tuple[list[Any], Any]:
    """Return the pooler classes for prompts and for tokens. Raises `ModelError` for unknown
    names.
    """
    names = {registered.entry.name for registered in registry.entries("poolers")}
    for name in (*spec.poolers, spec.token_pooler):
        if name not in names:
            raise ModelError(
                f"pooler: got {name!r}; available: {', '.join(sorted(names)) or 'none'}."
            )
    *one, many = (
        registry.load(registry.choose("poolers", name))
        for name in (*spec.poolers, spec.token_pooler)
    )
    return one, many
