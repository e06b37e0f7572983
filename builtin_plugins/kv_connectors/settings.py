"""Parsing of a connector's own settings (`kv_connector_extra_config`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from builtin_plugins.kv_connectors.contract import KVTransferConfig
from core.api import ConfigError, did_you_mean

T = TypeVar("T")
FLAG: Final = "--kv-transfer-config"
EXTRA: Final = "kv_connector_extra_config"


def read_extra(kind: type[T], settings: KVTransferConfig) -> T:
    """Return a connector's own settings as its dataclass. Raises `ConfigError` naming the key."""
    return read_fields(kind, settings.kv_connector_extra_config, f"{FLAG}.{EXTRA}")


def read_fields(kind: type[T], given: Mapping[str, Any], flag: str) -> T:
    """Return a dataclass with checked field types. Raises `ConfigError` naming the key."""
    types = get_type_hints(kind)
    values = {}
    for key, value in given.items():
        if key not in types:
            raise ConfigError(unknown_key(flag, key, types))
        values[key] = _checked(value, types[key], f"{flag}.{key}")
    for field in fields(kind):  # type: ignore[arg-type]  # it is a dataclass
        required = field.default is field.default_factory is MISSING
        if required and field.name not in values:
            raise ConfigError(f"{flag} needs {field.name!r}.")
    return kind(**values)


def unknown_key(flag: str, key: str, known: Mapping[str, Any]) -> str:
    """Return the error text for an unknown key, with the closest known keys."""
    hint = did_you_mean(key, known)
    return f"{flag} has no {key!r}{hint}{'' if hint else '; known: ' + ', '.join(known) + '.'}"


def require_positive(flag: str, value: float) -> None:
    """Raise `ConfigError` unless a value is finite and above 0."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{flag}: got {value!r}; expected more than 0.")


def _checked(value: Any, expected: Any, flag: str) -> Any:
    choices = get_args(expected)
    if choices and all(isinstance(choice, str) for choice in choices):
        if value not in choices:
            raise ConfigError(f"{flag}: got {value!r:.100}; expected one of {', '.join(choices)}.")
        return value
    try:
        return msgspec.convert(value, expected)
    except msgspec.ValidationError as error:
        text = str(error)
        raise ConfigError(f"{flag}: {text[:1].lower()}{text[1:]}.") from error
