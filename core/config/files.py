"""Configuration files: TOML or YAML, flat keys or tables."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.config.fields import OPTIONS, Field, FieldTable
from core.errors import ConfigError, did_you_mean
from core.option_files import MAX_YAML_BYTES, parse_nested, parse_yaml, read_option_text


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed file; keys are looked up when plugins' options are known."""

    path: Path
    text: str
    content: Mapping[str, Any]

    def location(self, key: str, table: str | None = None) -> str:
        """Return file, line and table of a key."""
        lines = self.text.splitlines()
        start = 0
        if table is not None:
            name = rf'["\']?{re.escape(table)}["\']?\s*'
            start = _line_of(lines, rf"(\[\s*{name}\]|{name}[:=])", 0)
        line = _line_of(lines, rf'\{{?["\']?{re.escape(key)}["\']?\s*[:=]', start)
        return f"{self.path}, line {line + 1}" + (f", [{table}]" if table else "")

    def values(self, table: FieldTable) -> Iterator[tuple[Field, Any, str]]:
        """Yield each field with its value and location.

        Raises `ConfigError` for unknown keys.
        """
        groups = table.groups()
        for key, value in self.content.items():
            name = key.replace("-", "_")
            field = table.by_name.get(name)
            if isinstance(value, Mapping) and (name in groups or name == OPTIONS):
                for inner, item in value.items():
                    member = self._member(table, groups, name, str(inner))
                    yield member, item, self.location(str(inner), key)
            elif field is not None:
                yield field, value, self.location(key)
            else:
                known = [*table.by_name, *groups]
                if isinstance(value, Mapping):
                    known = [*groups, *table.by_name]
                raise ConfigError(
                    f"{self.location(key)}: unknown key {key!r}{did_you_mean(name, known)}"
                )

    def peek(self, field: Field) -> tuple[Any, str] | None:
        """Return one value and its location; None if the file does not set it."""
        inner = self.content.get(field.section)
        tables = [
            (None, self.content),
            (field.section, inner if isinstance(inner, Mapping) else {}),
        ]
        for name, table in tables:
            for key, value in table.items():
                if str(key).replace("-", "_") == field.name and not isinstance(value, Mapping):
                    return value, self.location(str(key), name)
        return None

    def _member(
        self, table: FieldTable, groups: Mapping[str, list[Field]], group: str, key: str
    ) -> Field:
        name = key.replace("-", "_")
        field = table.by_name.get(name)
        if field is not None and group in (field.group, field.section):
            return field
        location = self.location(key, group)
        if field is not None:
            raise ConfigError(
                f"{location}: {key!r} belongs in [{field.group}], or before the first table."
            )
        known = [f.name for f in groups.get(group, ())]
        raise ConfigError(
            f"{location}: unknown key "
            f"{key!r}{did_you_mean(name, known) or did_you_mean(name, table.by_name)}"
        )


def read_config_file(path: str) -> ConfigFile:
    """Return a .toml, .yaml or .yml file. Raises `ConfigError` naming file, line and fault."""
    file = Path(path).expanduser()
    if file.suffix not in (".toml", ".yaml", ".yml"):
        raise ConfigError(
            f"--config {path}: unknown kind of file {file.suffix!r}; use .toml, .yaml or .yml."
        )
    text = read_option_text("--config", file, MAX_YAML_BYTES)
    kind = "TOML" if file.suffix == ".toml" else "YAML"
    content: Any = parse_nested(
        tomllib.loads if kind == "TOML" else parse_yaml,
        text,
        lambda error: ConfigError(f"{path}: not valid {kind}: {error}"),
    )
    content = {} if content is None else content
    if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
        raise ConfigError(
            f"{path}: must hold keys and values at its top, not {type(content).__name__}."
        )
    return ConfigFile(file, text, content)


def _line_of(lines: list[str], pattern: str, start: int) -> int:
    matcher = re.compile(r"\s*" + pattern)
    return next((i for i in range(start, len(lines)) if matcher.match(lines[i])), start)
