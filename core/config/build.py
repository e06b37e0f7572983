"""Builds one `EngineConfig` from layers of settings, and records the origin
of each value.

A layer holds the converted values of one source. Later layers win: default < file <
environment < flag. All environment variables that the engine reads are listed here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from core.config.fields import OPTIONS, Field, FieldTable, PluginOptions
from core.config.files import ConfigFile
from core.config.needed_settings import unmet_need
from core.config.sections import EngineConfig
from core.config.values import BadValue
from core.errors import ConfigError

CONFIG_FILE: Final = "ENGINE_CONFIG"
"""Environment variable with the configuration file, used without --config."""

ENVIRONMENT_FIELDS: Final[Mapping[str, str]] = {
    "ENGINE_PLUGINS": "plugins",
    "ENGINE_LOG_LEVEL": "log_level",
    # unlike a flag, it is not visible in the process list
    "ENGINE_API_KEY": "api_key",
}
"""Field of each environment variable; ignored if no loaded plugin has the
field.
"""


@dataclass(frozen=True, slots=True)
class Setting:
    """One value that was set, and its source."""

    value: Any
    origin: str
    """Source: "flag --max-model-len", "file engine.toml, line 3",
    "environment ENGINE_PLUGINS", "keyword dtype".
    """


Layer = Mapping[str, Setting]


@dataclass(frozen=True, slots=True)
class Provenance:
    """The origin of each value of a configuration."""

    origins: Mapping[str, str] = field(default_factory=dict)

    def origin_of(self, name: str) -> str:
        """Return the origin of the field with this flat name, or "default"."""
        return self.origins.get(name, "default")


def convert_setting(found: Field, value: Any, origin: str, label: str) -> Setting:
    """Convert a value to its field's type. Raises `ConfigError` that
    begins with `label`.
    """
    try:
        return Setting(found.type.convert(value), origin)
    except BadValue as error:
        if found.refuse:  # its own error message says more than a wrong type
            return Setting(f"{value!r:.100}", origin)
        raise ConfigError(f"{label} {value!r}: {error}.") from error


def read_environment() -> dict[str, str]:
    """Return the engine's environment variables that are set and not
    empty.
    """
    names = (CONFIG_FILE, *ENVIRONMENT_FIELDS)
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def layer_from_file(table: FieldTable, file: ConfigFile) -> Layer:
    """Return the settings of a file. Raises `ConfigError` naming file,
    line and key.
    """
    layer: dict[str, Setting] = {}
    for found, value, location in file.values(table):
        if found.name in layer:
            raise ConfigError(
                f"{location}: {found.name!r} is set twice, also in {layer[found.name].origin}."
            )
        value = found.default if value is None else value
        label = f"{location}: {found.name}"
        layer[found.name] = convert_setting(found, value, f"file {location}", label)
    return layer


def layer_from_environment(table: FieldTable, environment: Mapping[str, str]) -> Layer:
    """Return the settings of environment variables."""
    layer = {}
    for variable, name in ENVIRONMENT_FIELDS.items():
        if variable in environment and name in table.by_name:
            value = environment[variable]
            origin = f"environment {variable}"
            layer[name] = convert_setting(table.by_name[name], value, origin, variable)
    return layer


def layer_from_keywords(table: FieldTable, keywords: Mapping[str, Any]) -> Layer:
    """Return the settings of keyword arguments; None means the default."""
    layer = {}
    for name, value in keywords.items():
        found = table.find(name)
        if value is not None:
            layer[found.name] = convert_setting(found, value, f"keyword {name}", f"{name}=")
    return layer


def assemble(table: FieldTable, layers: Sequence[Layer]) -> tuple[EngineConfig, Provenance]:
    """Return the defaults overlaid with the layers. Raises `ConfigError` for invalid values."""
    merged: dict[str, Setting] = {}
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
    if lack := unmet_need(table.by_name, merged):
        raise ConfigError(_with_origins(lack, merged))
    try:
        sections = {name: kind(**values[name]) for name, kind in table.sections.items()}
        config = EngineConfig(**sections, options=values[OPTIONS])
    except ConfigError as error:
        raise ConfigError(_with_origins(str(error), merged)) from error
    return config, Provenance({name: setting.origin for name, setting in merged.items()})


def config_from_kwargs(kwargs: Mapping[str, Any], options: PluginOptions = ()) -> EngineConfig:
    """Return the configuration of `LLM(**kwargs)`: flat names of sections and
    plugins' options.

    Environment variables apply where no keyword is set. Raises `ConfigError` for
    unknown names.
    """
    table = FieldTable(options)
    environment = layer_from_environment(table, read_environment())
    return assemble(table, [environment, layer_from_keywords(table, kwargs)])[0]


def plugins_from_kwargs(kwargs: Mapping[str, Any]) -> tuple[list[str], str | None]:
    """Return plugin selection and lock file of `LLM(**kwargs)`, before plugins are loaded."""
    names = ("plugins", "plugins_lock")
    section = config_from_kwargs({name: kwargs[name] for name in names if name in kwargs}).plugins
    return section.plugins, section.plugins_lock


def _with_origins(message: str, merged: Layer) -> str:
    """Return the message with the origins of values that do not come from
    flags.
    """
    for flag in dict.fromkeys(re.findall(r"--([a-z][a-z0-9-]+)", message)):
        setting = merged.get(flag.replace("-", "_"))
        if setting is not None and not setting.origin.startswith("flag"):
            message += f" (--{flag} is set by {setting.origin})"
    return message
