"""`engine serve` uses the settings that a model comes with, unless they are set."""

from __future__ import annotations

from typing import Any

import pytest

from builtin_plugins.commands.serve.command import Serve
from builtin_plugins.commands.serve.model_defaults import with_model_defaults
from core.api import EngineConfig
from core.cli.main import main


@pytest.fixture
def served_config(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function from flags to the configuration that would be served."""
    found: list[EngineConfig] = []

    def run(self: Serve, context: Any) -> int:
        found.append(with_model_defaults(context))
        return 0

    def config_of(*flags: str) -> EngineConfig:
        assert main(["serve", *flags]) == 0
        return found[-1]

    monkeypatch.setattr(Serve, "run", run)
    return config_of


def names_and_parsers(config: EngineConfig) -> list[Any]:
    names = ("enable_auto_tool_choice", "tool_call_parser", "reasoning_parser")
    return [config.model.served_model_name, *(config.options.get(name) for name in names)]


@pytest.mark.parametrize("model", ["default", "demo:", "demo:vision"])
def test_demo_is_named_demo_and_has_its_parsers(served_config: Any, model: str) -> None:
    flags = () if model == "default" else (model,)
    assert names_and_parsers(served_config(*flags)) == [["demo", model], True, "hermes", "think"]


def test_settings_of_the_user_win(served_config: Any) -> None:
    flags = ("--served-model-name", "x", "--no-enable-auto-tool-choice", "--reasoning-parser", "")
    assert names_and_parsers(served_config(*flags)) == [["x"], False, "hermes", ""]


def test_settings_are_logged(served_config: Any, capsys: pytest.CaptureFixture[str]) -> None:
    served_config("--served-model-name", "x")
    logged = capsys.readouterr().err
    assert "--enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser think" in logged
    assert "--served-model-name" not in logged


def test_other_models_have_none(served_config: Any) -> None:
    assert names_and_parsers(served_config("scripted:"))[0] is None
    assert not served_config("scripted:").options.get("enable_auto_tool_choice")
