"""Environment variables of vLLM: named at the start, or the start is refused."""

from __future__ import annotations

import logging

import pytest

from builtin_plugins.features.unsupported_flags.environment import (
    GUARDS,
    engine_process_start,
    guard_error,
    ignored,
)
from core import LLM
from core.errors import ConfigError


@pytest.mark.parametrize("name", GUARDS)
def test_variable_that_guards_stops_the_start(name: str) -> None:
    error = guard_error({name: "1"})
    assert error.startswith(f"{name} is set, but has no effect here")
    assert error.endswith(f"then unset {name}.")
    assert not guard_error({name: "0"})
    assert not guard_error({name: ""})


def test_api_key_of_vllm_is_no_error_next_to_our_own() -> None:
    assert not guard_error({"VLLM_API_KEY": "a", "ENGINE_API_KEY": "a"})


def test_engine_with_an_api_key_of_vllm_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    with pytest.raises(ConfigError, match="VLLM_API_KEY is set") as caught:
        LLM("scripted:", max_model_len=64)
    assert "secret" not in str(caught.value)


def test_other_variables_are_named_with_their_replacement(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "1")
    with caplog.at_level(logging.WARNING):
        engine_process_start("worker")
        assert not caplog.text
        engine_process_start("main")
    assert "VLLM_LOGGING_LEVEL (--log-level or ENGINE_LOG_LEVEL)" in caplog.text
    assert "VLLM_USE_DEEP_GEMM" in caplog.text
    assert not ignored({"PATH": "/bin"})
