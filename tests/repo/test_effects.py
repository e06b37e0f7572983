"""No option, request field or environment variable passes without an effect.

Each option and each served field has a line in effects.toml with the test that shows its effect.
What is refused, named or documented as without effect is observed here.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from builtin_plugins.features.kv_events.settings import Settings as EventSettings
from builtin_plugins.features.structured_outputs.settings import StructuredOutputsConfig
from builtin_plugins.features.unsupported_flags.environment import GUARDS, guard_error, ignored
from builtin_plugins.kv_connectors.api import KVTransferConfig
from builtin_plugins.routes.operator.profiling import Settings as ProfilerSettings
from builtin_plugins.servers.http.server import HttpServer
from builtin_plugins.speculators.api import SpeculativeConfig
from core.config import EngineConfig
from core.config.build import (
    CONFIG_FILE,
    ENVIRONMENT_FIELDS,
    assemble,
    layer_from_environment,
    layer_from_keywords,
)
from core.config.fields import Field, FieldTable
from core.errors import ConfigError
from core.plugin import load_plan, make_plan
from core.plugin.discovery import discover
from core.testing.echo_engine import EchoEngine
from scripts.generate_docs import builtins
from tests.in_process import send_to

ROOT: Final = Path(__file__).parents[2]
LINES: Final[Mapping[str, Mapping[str, str]]] = tomllib.loads(
    (Path(__file__).parent / "effects.toml").read_text(encoding="utf-8")
)
VARIABLES: Final[list[str]] = json.loads(
    (Path(__file__).parent / "vllm_variables.json").read_text(encoding="utf-8")
)
TABLE: Final = FieldTable(builtins().options())
KEYS: Final[Mapping[str, Any]] = {
    "speculative_config": SpeculativeConfig,
    "kv_transfer_config": KVTransferConfig,
    "kv_events_config": EventSettings,
    "structured_outputs_config": StructuredOutputsConfig,
    "profiler_config": ProfilerSettings,
}
"""Options that are JSON objects, by the type that reads them."""
REFUSED: Final = [found for found in TABLE.by_name.values() if found.refuse]
SWITCHES: Final = (
    "enable_operator_routes",
    "tokens_only",
    "enable_scale_out",
    "enable_lora",
    "enable_runtime_lora",
)


@cache
def sources_of(path: str) -> dict[str, str]:
    """Return the source of each test of a file, and of the whole file under the empty name."""
    text = (ROOT / "tests" / path).read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {"": text}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name] = "\n".join(lines[first - 1 : node.end_lineno])
    return found


def uses(name: str, line: str) -> bool:
    """Return whether the test of a line exists and names an option, a flag or a field."""
    path, _, test = line.partition("::")
    source = sources_of(path).get(test, "")
    spelt = f"{re.escape(name)}|{re.escape(name.replace('_', '-'))}"
    return re.search(rf"(?<![a-z0-9])({spelt})(?![a-z0-9])", source) is not None


@pytest.mark.parametrize("kind", LINES)
def test_tests_of_all_lines_exist_and_use_the_name(kind: str) -> None:
    wrong = [name for name, line in LINES[kind].items() if not uses(name.rpartition(".")[2], line)]
    assert wrong == []


def test_every_option_has_a_line() -> None:
    served = {name for name, found in TABLE.by_name.items() if not found.refuse}
    assert served ^ LINES["options"].keys() == set()


def test_every_json_key_has_a_line() -> None:
    keys = {
        f"{option}.{field.name}"
        for option, kind in KEYS.items()
        for field in (
            msgspec.structs if hasattr(kind, "__struct_fields__") else dataclasses
        ).fields(kind)
    }
    assert keys ^ LINES["keys"].keys() == set()


def sample(found: Field) -> Any:
    """Return a value that requests something of an option that is not served."""
    kind = found.type
    if kind.choices:
        return next(each for each in kind.choices if found.refuses(each))
    if kind.mapping:
        return {"a": 1}
    if kind.items:
        return [1 if kind.items.scalars == (int,) else "a"]
    return {bool: not found.default, int: 77, float: 0.77, str: "x"}[kind.scalars[0]]


@pytest.mark.parametrize("found", REFUSED, ids=lambda found: found.name)
def test_option_that_is_not_served_is_refused_by_name(found: Field) -> None:
    value = sample(found)
    if not found.refuses(value):
        assert found.neutral is not None  # every value of it switches something off
        assert found.neutral(value)
        return
    with pytest.raises(ConfigError, match=rf"^{found.flag}\b"):
        assemble(TABLE, [layer_from_keywords(TABLE, {found.name: value})])


@cache
def described() -> dict[str, Any]:
    """Return the description of all routes of a server with every switch."""
    registry = load_plan(make_plan([f"no:{ref.name}" for ref in discover() if not ref.builtin]))
    config = EngineConfig(options=dict.fromkeys(SWITCHES, True))
    engine = EchoEngine(config)
    engine.registry = registry
    groups = {
        each.entry.name: registry.load(each)(engine, config) for each in registry.entries("routes")
    }
    page = send_to(HttpServer(engine, config, groups).app, "GET", "/openapi.json").json()
    return dict(page["components"]["schemas"])


def properties() -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield body, name and schema of each field."""
    for body, schema in described().items():
        for name, of_field in schema.get("properties", {}).items():
            if body.endswith("Fields") or body.startswith("v1"):
                yield body, name, of_field


def test_every_served_field_has_a_line() -> None:
    served = {
        name
        for _, name, of_field in properties()
        if of_field.get("description") != "Has no effect."
        and not ("enum" in of_field and "type" not in of_field and None in of_field["enum"])
    }
    assert served ^ LINES["fields"].keys() == set()


def test_fields_without_an_effect_are_described_so() -> None:
    silent = {
        name
        for _, name, of_field in properties()
        if of_field.get("description") == "Has no effect."
    }
    page = (ROOT / "docs" / "guides" / "http.md").read_text(encoding="utf-8")
    assert {name for name in silent if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("variable", VARIABLES)
def test_variable_of_vllm_is_named_or_stops_the_start(variable: str) -> None:
    assert (variable in guard_error({variable: "1"})) == (variable in GUARDS)
    assert variable in ignored({variable: "1"})


@pytest.mark.parametrize("variable", ENVIRONMENT_FIELDS)
def test_variable_of_ours_sets_its_field(variable: str) -> None:
    value = "debug" if variable == "ENGINE_LOG_LEVEL" else "one"
    layer = layer_from_environment(TABLE, {variable: value})
    (name,) = layer
    assert name == ENVIRONMENT_FIELDS[variable]
    assert layer[name].value in (value, [value])
    assert variable != CONFIG_FILE
