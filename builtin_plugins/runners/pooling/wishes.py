"""What users want of pooling, `--pooler-config`: every key is checked, and refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from builtin_plugins.runners.pooling.pieces import Pieces
from core.api import ConfigError, EngineConfig, ModelError, PoolingSpec, did_you_mean

_ACTIVATIONS: Final = ("use_activation", "normalize", "softmax", "activation")
_RENAMED: Final = {
    "logit_bias": "mean",
    "logit_mean": "mean",
    "logit_sigma": "sigma",
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
"""What a value must be, in words and as a question."""


def by_user(spec: PoolingSpec, wanted: Mapping[str, Any], registry: Any) -> PoolingSpec:
    """Lay `--pooler-config` over all else. Raises `ConfigError` naming the key."""
    given = {name: value for name, value in wanted.items() if value is not None}
    for name, value in given.items():
        if name not in _KEYS:
            hint = did_you_mean(name, _KEYS)
            raise ConfigError(
                f"--pooler-config: {name!r} is not known{hint}. Known: {', '.join(_KEYS)}."
            )
        what, holds = _KEYS[name]
        if not holds(value):
            raise ConfigError(f"--pooler-config: {name} must be {what}, not {value!r}.")
    _check_pieces(spec, given)
    changes: dict[str, Any] = {}
    for name in ("pooling_type", "seq_pooling_type", "tok_pooling_type"):
        if name in given:
            changes |= _pooler_called(name, given[name].lower(), registry)
    for name in _ACTIVATIONS:
        if name in given:
            # True: what holds anyway, unless files say that nothing is done.
            changes["last"] = (
                "none" if not given[name] else None if spec.last == "none" else spec.last
            )
    if "dimensions" in given:
        changes |= {"dimensions": given["dimensions"], "matryoshka": True}
    changes |= {ours: given[name] for name, ours in _RENAMED.items() if name in given}
    if "returned_token_ids" in given:
        changes["returned_token_ids"] = tuple(given["returned_token_ids"])
    return replace(spec, **changes)


def check_columns(spec: PoolingSpec, size: int) -> None:
    """Raise `ConfigError` for columns that the `size` numbers of the model do not have."""
    if spec.dimensions is not None and (spec.task != "embed" or spec.dimensions > size):
        what = (
            f"the model's embeddings have {size}"
            if spec.task == "embed"
            else "this model gives scores"
        )
        raise ConfigError(f"--pooler-config: dimensions {spec.dimensions} cannot be kept; {what}.")
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


def pieces(config: EngineConfig, size: int) -> Pieces | None:
    """Return what cuts texts longer than `size` tokens, where the user wants that."""
    wanted = config.options.get("pooler_config") or {}
    return (
        Pieces(size, wanted.get("max_embed_len"))
        if wanted.get("enable_chunked_processing")
        else None
    )


def _check_pieces(spec: PoolingSpec, given: Mapping[str, Any]) -> None:
    on = given.get("enable_chunked_processing", False)
    most = given.get("max_embed_len")
    if on and spec.task != "embed":
        raise ConfigError(
            "--pooler-config: enable_chunked_processing is for embeddings; this model gives scores."
        )
    if most is not None and not on:
        raise ConfigError(
            f"--pooler-config: max_embed_len {most} is the longest text embedded in pieces; set "
            "enable_chunked_processing with it."
        )


def _pooler_called(key: str, name: str, registry: Any) -> dict[str, Any]:
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
    return {"pooler": name, "per_token": False, "late": False}


def load_poolers(spec: PoolingSpec, registry: Any) -> tuple[list[Any], Any]:
    """Return the classes that pool for a prompt and for each token.

    Raises `ModelError` for a name nobody has.
    """
    names = {registered.entry.name for registered in registry.entries("poolers")}
    for name in (*spec.poolers, spec.token_pooler):
        if name not in names:
            raise ModelError(
                f"the model wants the pooler {name!r}; available: "
                f"{', '.join(sorted(names)) or 'none'}."
            )
    *one, many = (
        registry.load(registry.choose("poolers", name))
        for name in (*spec.poolers, spec.token_pooler)
    )
    return one, many
