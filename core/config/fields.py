"""The field table: every configurable value, of the engine's sections and of
plugins' options.

Flags, files, keywords, help and the reference page are generated from it.
"""

from __future__ import annotations

import argparse
import dataclasses
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from core.config.sections import EngineConfig
from core.config.values import BadValue, ValueType
from core.errors import ConfigError, UnknownOption, did_you_mean

OPTIONS: Final = "options"
"""Name of the section with the plugins' values."""


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration value of a plugin: a flag, a config file key and a
    keyword of `LLM`.
    """

    name: str
    """Snake case; the flag is `--` plus the name with dashes. Unique
    over all plugins.
    """
    type: Any
    """bool, int, float, str, list[str], dict, `Literal[...]`, or one of these
    with `| None`.

    Numbers have bounds: `Annotated[int, Range(0, 65535)]`.
    """
    default: Any
    help: str
    refuse: str | None = None
    """Error message of a known but unsupported option; None: supported."""
    neutral: Callable[[Any], bool] | None = None
    """Predicate of an unsupported option: True for values that request
    nothing and pass.
    """
    names_plugin: bool = False
    """True: the value is a plugin's file or module, loaded like `--plugins
    +VALUE`.
    """
    needs: tuple[str, ...] = ()
    """Settings of which one must be set (`name`, or `name=pattern`).

    Without them another value than the default is refused.
    """
    read_by: str = ""
    """Kind of the entries that read it: those with it in their `options`."""


PluginOptions = Iterable[tuple[str, Option]]
"""Options, each with the name of its plugin."""


@dataclass(frozen=True, slots=True)
class Field:
    """One configurable value."""

    name: str
    section: str
    """Section of `EngineConfig`; `options` for a plugin's option."""
    group: str
    """Section or plugin name: group in help, table in files."""
    type: ValueType
    default: Any
    help: str | None = None
    """Help text of a plugin's option; `core.cli.field_docs` has that of a
    section field.
    """
    refuse: str | None = None
    neutral: Callable[[Any], bool] | None = None
    needs: tuple[str, ...] = ()
    """Settings of which one must be set."""

    def refuses(self, value: Any) -> bool:
        """Return whether the option is unsupported and this value requests
        it.
        """
        if not self.refuse or value == self.default:
            return False
        return not (self.neutral and self.neutral(value))

    def fault(self, value: Any) -> str:
        """Return the error of a value of the right type, with the flag; empty: it is valid."""
        if self.refuse or value == self.default:
            return ""
        found = self.type.fault(value)
        return f"{self.flag} {found}" if found else ""

    @property
    def flag(self) -> str:
        """The flag in its canonical spelling."""
        return "--" + self.name.replace("_", "-")


class FieldTable:
    """All fields by flat name.

    Raises `ConfigError` for options that clash or have an impossible type.
    """

    def __init__(self, options: PluginOptions = ()) -> None:
        self.by_name: dict[str, Field] = {}
        hints = typing.get_type_hints(EngineConfig)
        self.sections: Final[dict[str, type[Any]]] = {
            name: hints[name] for name in hints if name != OPTIONS
        }
        for section, kind in self.sections.items():
            hints = typing.get_type_hints(kind, include_extras=True)
            for item in dataclasses.fields(kind):
                default = item.default
                if item.default_factory is not dataclasses.MISSING:
                    default = item.default_factory()
                value = ValueType.of(hints[item.name], item.name)
                self.by_name[item.name] = Field(item.name, section, section, value, default)
        for plugin, option in options:
            self._add_option(plugin, option)

    def _add_option(self, plugin: str, option: Option) -> None:
        known = self.by_name.get(option.name)
        if known is not None and option.refuse:
            return
        if known is not None and not known.refuse:
            owner = "the engine itself" if known.section != OPTIONS else f"plugin {known.group!r}"
            raise ConfigError(
                f"plugin {plugin!r} contributes option {option.name!r}, which {owner} has already. "
                f"Rename one of them, or leave one plugin out with --plugins no:{plugin}."
            )
        kind = ValueType.of(option.type, option.name)
        try:
            default = option.default if option.default is None else kind.convert(option.default)
        except BadValue as error:
            raise ConfigError(
                f"plugin {plugin!r}: default of option {option.name!r}: {error}"
            ) from error
        self.by_name[option.name] = Field(
            option.name,
            OPTIONS,
            plugin,
            kind,
            default,
            help=option.help,
            refuse=option.refuse,
            neutral=option.neutral,
            needs=option.needs,
        )

    def find(self, spelt: str) -> Field:
        """Return the field of this name, dashes allowed.

        Raises `UnknownOption` with the nearest name.
        """
        found = self.by_name.get(spelt.replace("-", "_"))
        if found is None:
            supported = (name for name, found in self.by_name.items() if not found.refuse)
            hint = did_you_mean(spelt.replace("-", "_"), supported)
            raise UnknownOption(
                f"unknown option {spelt!r}{hint or '; `engine config` lists all there are'}"
            )
        return found

    def groups(self) -> dict[str, list[Field]]:
        """Return the fields by section or plugin, in declaration order."""
        groups: dict[str, list[Field]] = {}
        for found in self.by_name.values():
            groups.setdefault(found.group, []).append(found)
        return groups


def is_switch(kind: ValueType) -> bool:
    """Return whether it is a plain boolean; its flag takes no value."""
    return kind.scalars == (bool,) and not (kind.choices or kind.items or kind.mapping)


def metavar(kind: ValueType) -> str:
    """Return the placeholder of a value in help and docs."""
    if kind.choices:
        names = [str(choice) for choice in kind.choices]
        if kind.optional:
            names.append("None")
        return "{" + ",".join(names) + "}"
    if kind.items is not None:
        return metavar(kind.items)
    placeholders = {int: "INT", float: "FLOAT", str: "TEXT"}
    parts = [placeholders[scalar] for scalar in kind.scalars if scalar in placeholders]
    if kind.mapping:
        parts.append("JSON")
    return "|".join(parts)


def argparse_options(kind: ValueType) -> dict[str, Any]:
    """Return the options of `add_argument` that collect the raw texts of a
    value.
    """
    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    if is_switch(kind):
        return options | {"action": argparse.BooleanOptionalAction}
    options["metavar"] = metavar(kind)
    if bool in kind.scalars:
        return options | {"nargs": "?", "const": True}
    if kind.items is not None and kind.length:
        return options | {"nargs": kind.length}
    if kind.items is not None:
        return options | {"nargs": "+", "action": "extend"}
    return options
