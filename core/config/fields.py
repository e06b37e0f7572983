"""The table of everything that can be configured: section fields and plugins' options, as equals.

Flags, files, keywords, help and the reference page are all read from it. Knows no argv and no file.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from core.config.sections import EngineConfig
from core.config.values import BadValue, ValueType
from core.errors import ConfigError, did_you_mean

OPTIONS: Final = "options"
"""Section of the values that belong to plugins."""


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration value a plugin contributes: a flag, a key in the config file and a keyword of
    `LLM`.
    """

    name: str
    """Snake case; the flag is `--` plus the name with dashes. Unique over all plugins."""
    type: Any
    """bool, int, float, str, list[str], dict, `Literal[...]`, or one of these with `| None`;
    numbers with their bounds,
    `Annotated[int, Within(0, 65535)]`."""
    default: Any
    help: str
    refuse: str | None = None
    """Set for options known but not served yet: using one fails with this text."""
    neutral: Callable[[Any], bool] | None = None
    """Of a refused option: says whether a value other than the default asks for nothing either, and
    so passes.
    """
    names_plugin: bool = False
    """The value is a plugin's file or module, which is loaded as with `--plugins +VALUE`."""


PluginOptions = Iterable[tuple[str, Option]]
"""Options with the names of their plugins."""


@dataclass(frozen=True, slots=True)
class Field:
    """One configurable value."""

    name: str
    section: str
    """Section of `EngineConfig` it is stored in; `options` for a plugin's."""
    group: str
    """Section or plugin name: title in help, table in files."""
    type: ValueType
    default: Any
    help: str | None = None
    """Text of a plugin's option; a section field's is beneath it in the source
    (`core.cli.field_docs`).
    """
    refuse: str | None = None
    neutral: Callable[[Any], bool] | None = None

    def refuses(self, value: Any) -> bool:
        """Say whether the option is known, but this value of it not served."""
        return (
            bool(self.refuse)
            and value != self.default
            and not (self.neutral and self.neutral(value))
        )

    def fault(self, value: Any) -> str:
        """Say what is wrong with a value of the right type, the flag first; empty: nothing."""
        found = "" if self.refuse or value == self.default else self.type.fault(value)
        return f"{self.flag} {found}" if found else ""

    @property
    def flag(self) -> str:
        """The flag, in its usual spelling."""
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
                made = (
                    item.default
                    if item.default_factory is dataclasses.MISSING
                    else item.default_factory()
                )
                value = ValueType.of(hints[item.name], item.name)
                self.by_name[item.name] = Field(item.name, section, section, value, made)
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
        texts = option.help, option.refuse, option.neutral
        self.by_name[option.name] = Field(option.name, OPTIONS, plugin, kind, default, *texts)

    def find(self, spelt: str) -> Field:
        """Return the field of this name, dashes allowed. Raises `ConfigError` with the nearest one."""
        found = self.by_name.get(spelt.replace("-", "_"))
        if found is None:
            taken = (name for name, found in self.by_name.items() if not found.refuse)
            hint = did_you_mean(spelt.replace("-", "_"), taken)
            raise ConfigError(
                f"unknown option {spelt!r}{hint or '; `engine config` lists all there are'}"
            )
        return found

    def groups(self) -> dict[str, list[Field]]:
        """Return the fields by section or plugin, in order of declaration."""
        groups: dict[str, list[Field]] = {}
        for found in self.by_name.values():
            groups.setdefault(found.group, []).append(found)
        return groups
