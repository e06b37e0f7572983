"""From layers of given values to one `EngineConfig`, with where each value came from.

A layer holds what one place said (file, environment, flags, keywords), already converted. The later
layer wins: default < file < environment < flag. Knows no argv.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.config import env
from core.config.fields import OPTIONS, Field, FieldTable, PluginOptions
from core.config.files import ConfigFile
from core.config.sections import EngineConfig
from core.config.values import BadValue
from core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Given:
    """One value that somebody set."""

    value: Any
    origin: str
    """Where: "flag --max-model-len", "file engine.toml, line 3", "environment ENGINE_PLUGINS",
    "keyword dtype".
    """


Layer = Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where each value of a configuration came from."""

    origins: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: str) -> str:
        """Return the origin of the field with this flat name, "default" where nobody set it."""
        return self.origins.get(name, "default")


def given(found: Field, value: Any, origin: str, shown: str) -> Given:
    """Convert a value to its field's type. Raises `ConfigError` that begins with `shown`."""
    try:
        return Given(found.type.convert(value), origin)
    except BadValue as error:
        if found.refuse:
            return Given(
                f"{value!r:.100}", origin
            )  # refused with its own text, which says more than a wrong type
        raise ConfigError(f"{shown} {value!r}: {error}.") from error


def layer_from_file(table: FieldTable, file: ConfigFile) -> Layer:
    """Return what a file says. Raises `ConfigError` naming file, line and key."""
    layer: dict[str, Given] = {}
    for found, value, place in file.values(table):
        if found.name in layer:
            raise ConfigError(
                f"{place}: {found.name!r} is set twice, also in {layer[found.name].origin}."
            )
        value = found.default if value is None else value
        layer[found.name] = given(found, value, f"file {place}", f"{place}: {found.name}")
    return layer


def layer_from_environment(table: FieldTable, environment: Mapping[str, str]) -> Layer:
    """Return what environment variables say."""
    return {
        name: given(table.by_name[name], environment[variable], f"environment {variable}", variable)
        for variable, name in env.FIELDS.items()
        if variable in environment and name in table.by_name
    }


def layer_from_keywords(table: FieldTable, keywords: Mapping[str, Any]) -> Layer:
    """Return what keyword arguments say; None means the default."""
    layer = {}
    for name, value in keywords.items():
        found = table.find(name)
        if value is not None:
            layer[found.name] = given(found, value, f"keyword {name}", f"{name}=")
    return layer


def assemble(table: FieldTable, layers: Sequence[Layer]) -> tuple[EngineConfig, Provenance]:
    """Lay the layers over the defaults. Raises `ConfigError` for values that cannot work."""
    merged: dict[str, Given] = {}
    for layer in layers:
        merged.update(layer)
    values: dict[str, dict[str, Any]] = {name: {} for name in (*table.sections, OPTIONS)}
    for name, found in table.by_name.items():
        setting = merged.get(name)
        if setting is not None and found.refuses(setting.value):
            where = "" if setting.origin.startswith("flag") else f" ({setting.origin})"
            raise ConfigError(f"{found.flag}{where}: {found.refuse}")
        if setting is not None and (fault := found.fault(setting.value)):
            raise ConfigError(_with_origins(fault, merged))
        if setting is not None and not found.refuse:
            values[found.section][name] = setting.value
        elif found.section == OPTIONS and not found.refuse:
            values[OPTIONS][name] = found.default
    try:
        sections = {name: kind(**values[name]) for name, kind in table.sections.items()}
        config = EngineConfig(**sections, options=values[OPTIONS])
    except ConfigError as error:
        raise ConfigError(_with_origins(str(error), merged)) from error
    return config, Provenance({name: setting.origin for name, setting in merged.items()})


def config_from_kwargs(kwargs: Mapping[str, Any], options: PluginOptions = ()) -> EngineConfig:
    """Build the configuration of `LLM(**kwargs)`: flat names of all sections and plugins' options.

    Variables of the environment count where no keyword is given. Raises `ConfigError` for an
    unknown name.
    """
    table = FieldTable(options)
    environment = layer_from_environment(table, env.read_environment())
    return assemble(table, [environment, layer_from_keywords(table, kwargs)])[0]


def plugins_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Return plugin selection and lock file of `LLM(**kwargs)`, needed before plugins' options are
    known.
    """
    section = config_from_kwargs(
        {name: kwargs[name] for name in ("plugins", "plugins_lock") if name in kwargs}
    ).plugins
    return section.plugins, section.plugins_lock


def _with_origins(message: str, merged: Layer) -> str:
    """Say where the flags named in a message got their values, where that was no flag."""
    for flag in dict.fromkeys(re.findall(r"--([a-z][a-z0-9-]+)", message)):
        setting = merged.get(flag.replace("-", "_"))
        if setting is not None and not setting.origin.startswith("flag"):
            message += f" (--{flag} is set by {setting.origin})"
    return message
