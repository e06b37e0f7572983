"""What logits processors ask of a request's parameters, and those named on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from core.errors import ConfigError, InvalidRequest, PluginError
from core.plugin import PluginRef, Registered
from core.plugin.entry import Entry
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.plugin import Registry

_METHODS = ("wants", "added", "removed", "apply")
_DEFAULTS = SamplingParams()


def logits_processors(config: EngineConfig, registry: Registry) -> list[Registered]:
    """Return the loaded plugins' processors, then those of `--logits-processors`, in the order given."""
    named = config.options.get("logits_processors") or ()
    return [*registry.entries("logits_processors"), *(_named(path, registry) for path in named)]


def _named(path: str, registry: Registry) -> Registered:
    """Return the processor at `module:Class`. Raises `ConfigError` for what is none."""
    module, _, name = path.partition(":")
    flag = f"--logits-processors {path}"
    if not module or not name:
        raise ConfigError(f"{flag} is not module:Class, such as my_package.processors:Mine.")
    ref = PluginRef(name=path, target=module, named=True)
    registered = Registered("logits_processors", Entry(path, path, "named by --logits-processors"), ref)
    try:
        target = registry.load(registered, probe=True)
    except PluginError as error:
        raise ConfigError(f"{flag}: {error}") from error
    lacking = [method for method in _METHODS if not callable(getattr(target, method, None))]
    if not isinstance(target, type) or lacking:
        lack = f"; it has no {', '.join(lacking)}" if lacking else ""
        raise ConfigError(f"{flag} names no logits processor class{lack}. See core.contracts.LogitsProcessor.")
    return registered


def check_extra_args(sampling: SamplingParams, processors: Iterable[Any]) -> None:
    """Raise `InvalidRequest` for arguments of another type than declared, and for what excludes each other."""
    given = sampling.extra_args or {}
    for processor in processors:
        declared = getattr(processor, "extra_args", {})
        for name in declared:
            if name in given:
                _check_type(name, given[name], declared[name])
        asked = [f"extra_args.{name}" for name in declared if name in given]
        asked += [name for name in processor.params if _is_set(sampling, name)]
        clash = next((name for name in getattr(processor, "excludes", ()) if _is_set(sampling, name)), None)
        if asked and clash is not None:
            raise InvalidRequest(asked[0], f"cannot be combined with {clash}; leave one of them out.")


def _is_set(sampling: SamplingParams, name: str) -> bool:
    return bool(getattr(sampling, name) != getattr(_DEFAULTS, name))


def _check_type(name: str, value: Any, wanted: Any) -> None:
    try:
        msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at `$")
        raise InvalidRequest(f"extra_args.{name}{place.rstrip('`')}", f"{text[:1].lower()}{text[1:]}.") from error
