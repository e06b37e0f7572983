"""Plugins and configuration from the keywords of `LLM(...)`."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import ConfigError
from core.frontend.startup import load_from_kwargs

BANG = """
from builtin_plugins.output_parsers.api import ToolFormat
from core.api import Entry, hookimpl

def read(reader, request):
    while (yield from reader.content_until_call("!")):
        with reader.attempt():
            name, _ = yield from reader.read_until("!")
            reader.add_call(name, {})

@hookimpl
def engine_tool_parsers():
    return [Entry("bang", ToolFormat(read), "!name!")]
"""


def test_option_naming_a_file_loads_it_as_a_plugin(tmp_path: Path) -> None:
    file = tmp_path / "bang.py"
    file.write_text(BANG)
    config, registry = load_from_kwargs(
        {"tool_parser_plugin": str(file), "reasoning_parser_plugin": None}
    )
    assert registry.choose("tool_parsers", "bang").plugin.name == "bang"
    assert config.plugins.plugins == [f"+{file}"], "what other processes and recorded runs load"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("./nofile.py", "^--reasoning-parser-plugin ./nofile.py: there is no such file"),
        ("unknown", "^--reasoning-parser-plugin 'unknown': unknown plugin 'unknown'"),
    ],
)
def test_missing_plugin_of_an_option_is_refused_by_its_flag(value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_from_kwargs({"reasoning_parser_plugin": value})
