"""What keywords of `LLM(...)` make of plugins and configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.engine.front import load_from_kwargs
from core.errors import ConfigError

BANG = """
from core.api import Entry, ToolFormat, hookimpl

def read(scan, request):
    while (yield from scan.text("!")):
        with scan.attempt():
            name, _ = yield from scan.take("!")
            scan.call(name, {})

@hookimpl
def engine_tool_parsers():
    return [Entry("bang", ToolFormat(read), "!name!")]
"""


def test_a_file_that_an_option_names_is_loaded_as_a_plugin_by_every_process(tmp_path: Path) -> None:
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
        ("nobody", "^--reasoning-parser-plugin 'nobody': unknown plugin 'nobody'"),
    ],
)
def test_a_plugin_that_an_option_names_in_vain_is_refused_under_the_options_name(
    value: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_from_kwargs({"reasoning_parser_plugin": value})
