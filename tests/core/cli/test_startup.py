"""The start-up stage: the command and the flags that select plugins."""

from __future__ import annotations

import pytest

from core.cli.startup import read_startup
from core.errors import ConfigError


def test_flags_before_and_after_the_command_are_collected() -> None:
    line = "--plugins a --config=c.toml serve m --plugins b c --plugins_lock l --port 1"
    found = read_startup(line.split())
    assert found.command == "serve"
    assert found.given == {"plugins": ["a", "b", "c"], "config": ["c.toml"], "plugins_lock": ["l"]}
    assert found.rest == ["m", "--port", "1"]


def test_list_before_the_command_takes_one_value_and_leaves_the_command() -> None:
    assert read_startup(["--plugins", "none,a", "list"]).command == "list"


def test_debug_is_a_log_level() -> None:
    assert read_startup(["serve", "--debug"]).last("log_level") == "debug"


def test_arguments_after_a_double_dash_belong_to_the_command() -> None:
    found = read_startup(["run", "--", "--plugins", "a"])
    assert (found.given, found.rest) == ({}, ["--", "--plugins", "a"])


def test_help_and_version_before_the_command() -> None:
    assert read_startup(["--help"]).wants_help
    assert read_startup(["--version"]).version
    assert read_startup(["serve", "--help"]).rest == ["--help"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--plugin", "a", "serve"],
            "unknown flag --plugin before the command; did you mean '--plugins'?",
        ),
        (
            ["--port", "1", "serve"],
            "unknown flag --port before the command; other flags come after it.",
        ),
        (["serve", "--config"], "--config needs a value."),
        (["serve", "--plugins", "--port"], "--plugins needs a value."),
    ],
)
def test_wrong_start_up_argument_names_the_problem(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_startup(argv)
    assert message in str(caught.value)
