"""`--enable-log-outputs`: outputs in the log, cut at `--max-log-len`."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.errors import ConfigError

LOGGED = {"enable_log_requests": True, "disable_log_stats": False, "max_model_len": 64}


def lines_of(caplog: pytest.LogCaptureFixture, **options: Any) -> list[str]:
    """Return the logged outputs of two sequences of one request."""
    with caplog.at_level(logging.INFO), LLM("scripted:", **LOGGED, **options) as llm:
        llm.generate("hello there", SamplingParams(n=2, temperature=1.0), use_tqdm=False)
    lines = [record.getMessage() for record in caplog.records]
    return [line for line in lines if line.startswith("output ")]


def test_outputs_are_logged_with_the_switch_only(caplog: pytest.LogCaptureFixture) -> None:
    assert lines_of(caplog) == []
    first, second = lines_of(caplog, enable_log_outputs=True)
    assert first.startswith("output 0 of request 0: 'hello there")
    assert second.startswith("output 1 of request 0: 'hello there")


def test_long_outputs_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    line, _ = lines_of(caplog, enable_log_outputs=True, max_log_len=5)
    assert line.startswith("output 0 of request 0: 'hello' and ")
    assert line.endswith(" characters more")


def test_output_without_a_tokenizer_is_logged_as_token_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    options = {**LOGGED, "enable_log_outputs": True, "skip_tokenizer_init": True}
    with caplog.at_level(logging.INFO), LLM("scripted:", **options) as llm:
        (output,) = llm.generate({"prompt_token_ids": [65, 66]}, use_tqdm=False)
    ids = " ".join(map(str, output.outputs[0].token_ids))
    assert f"output 0 of request 0: {ids!r}" in caplog.text


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"enable_log_outputs": True}, "--enable-log-outputs"),
        ({"enable_log_requests": True, "max_log_len": 9}, "--max-log-len"),
    ],
)
def test_setting_without_its_switch_is_refused(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{flag}: got .* has no effect without"):
        LLM("scripted:", disable_log_stats=False, **options)
