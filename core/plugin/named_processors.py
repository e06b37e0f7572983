"""The logits processors of plugins and of `--logits-processors`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ConfigError, PluginError
from core.plugin import PluginRef, Registered
from core.plugin.entry import Entry

if TYPE_CHECKING:
    from core.config import EngineConfig
    from core.contracts.registry import Registry

_METHODS = ("wants", "added", "removed", "apply")


def logits_processors(config: EngineConfig, registry: Registry) -> list[Registered]:
    """Return the plugins' processors, then those of `--logits-processors` in
    order.
    """
    named = config.options.get("logits_processors") or ()
    return [*registry.entries("logits_processors"), *(_named(path, registry) for path in named)]


def _named(path: str, registry: Registry) -> Registered:
    """Return the processor at `module:Class`. Raises `ConfigError` if there is none."""
    module, _, name = path.partition(":")
    flag = f"--logits-processors {path}"
    if not module or not name:
        raise ConfigError(f"{flag} is not module:Class, such as my_package.processors:Mine.")
    ref = PluginRef(name=path, target=module, named=True, flag="--logits-processors")
    registered = Registered(
        "logits_processors", Entry(path, path, "named by --logits-processors"), ref
    )
    try:
        target = registry.load(registered, probe=True)
    except PluginError as error:
        raise ConfigError(f"{flag} cannot be imported: {error.__cause__ or error}.") from error
    lacking = [method for method in _METHODS if not callable(getattr(target, method, None))]
    if not isinstance(target, type) or lacking:
        lack = f"; it has no {', '.join(lacking)}" if lacking else ""
        raise ConfigError(
            f"{flag} names no logits processor class{lack}. See core.contracts.LogitsProcessor."
        )
    return registered
