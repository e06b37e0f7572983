"""The file of `--models-file`: YAML with the settings of each model by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from core.api import ConfigError, did_you_mean
from core.api.config import MAX_YAML_BYTES, Field, FieldTable, compose_yaml, read_option_text

MERGE: Final = "tag:yaml.org,2002:merge"
"""Tag of the key `<<`."""


@dataclass(frozen=True, slots=True)
class FileModel:
    """One model of a file."""

    name: str
    settings: Mapping[str, Any]
    """Converted values by flat name; `model` is one of them."""
    location: str
    """File and line of its name."""


class ModelsFile:
    """Reads a file. `own_fields` are those that a model may set, out of all in `table`."""

    def __init__(self, path: str, table: FieldTable, own_fields: Mapping[str, Field]) -> None:
        self._path = path
        self._table = table
        self._own_fields = own_fields

    def read(self) -> list[FileModel]:
        """Return the models in order. Raises `ConfigError` naming line and field."""
        file = Path(self._path).expanduser()
        text = read_option_text("--models-file", file, MAX_YAML_BYTES)
        try:
            loader, root = compose_yaml(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"{self._path}: not valid YAML: {error}") from error
        if not isinstance(root, yaml.MappingNode) or not root.value:
            raise ConfigError(
                f"{self._path}: got no models; expected NAME: {{model: MODEL}} for each."
            )
        try:
            return [
                self._model(loader, name, node, location)
                for name, node, location in self._items(loader, root)
            ]
        except ConfigError:
            raise
        except (yaml.YAMLError, ValueError) as error:  # a number, a date or a key that is none
            raise ConfigError(f"{self._path}: not valid YAML: {error}") from error

    def _model(
        self, loader: yaml.SafeLoader, name: str, node: yaml.Node, location: str
    ) -> FileModel:
        if isinstance(node, yaml.ScalarNode):
            value = loader.construct_object(node)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{location}: {name}: got {value!r}; expected a model.")
            return FileModel(name, {"model": value}, location)
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{location}: {name}: got a list; expected keys and values.")
        settings: dict[str, Any] = {}
        for key, child, where in self._items(loader, node):
            found = self._field(key, where)
            settings[found.name] = _converted(
                found, loader.construct_object(child, deep=True), where
            )
        if "model" not in settings:
            raise ConfigError(f"{location}: {name}.model: missing. Name a folder or a hub id.")
        return FileModel(name, settings, location)

    def _field(self, key: str, where: str) -> Field:
        name = key.replace("-", "_")
        if name in self._own_fields:
            return self._own_fields[name]
        if name in self._table.by_name and not self._table.by_name[name].refuse:
            raise ConfigError(
                f"{where}: {key}: belongs to the server, not to one model. Set it as "
                f"{self._table.by_name[name].flag} on the command line."
            )
        raise ConfigError(
            f"{where}: {key}: unknown key{did_you_mean(name, self._own_fields)} "
            "(keys are the flags of `engine serve`)."
        )

    def _items(
        self, loader: yaml.SafeLoader, node: yaml.MappingNode
    ) -> Iterator[tuple[str, yaml.Node, str]]:
        """Yield key, value and location. Raises `ConfigError` for a key that is given twice."""
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == MERGE:
                continue
            line = key_node.start_mark.line + 1
            key = loader.construct_object(key_node)
            if not isinstance(key, str) or not key.strip():
                raise ConfigError(
                    f"{self._path}, line {line}: got key {key!r}; expected text. Put it in quotes."
                )
            if key in lines:
                raise ConfigError(
                    f"{self._path}, line {line}: {key}: given twice, also in line {lines[key]}. "
                    "Remove one."
                )
            lines[key] = line
        loader.flatten_mapping(node)  # `<<: *anchor`; the node's own keys come last and win
        merged = {loader.construct_object(key): (key, value) for key, value in node.value}
        for key, (key_node, value) in merged.items():
            yield key, value, f"{self._path}, line {key_node.start_mark.line + 1}"


def _converted(found: Field, value: Any, where: str) -> Any:
    """Return a value of the field's type. Raises `ConfigError`."""
    if found.refuse:
        raise ConfigError(f"{where}: {found.name}: {found.refuse}")
    if value is None:
        return found.default
    try:
        converted = found.type.convert(value)
    except ValueError as error:
        raise ConfigError(f"{where}: {found.name}: got {value!r:.200}; {error}.") from error
    if fault := found.fault(converted):
        raise ConfigError(f"{where}: {fault}")
    return converted
