"""`engine generate` with the scripted model, which repeats its prompt."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from builtin_plugins.commands.generate import CHAT_NOTE
from core.cli.main import main

SMALL = [
    "scripted:",
    "--max-model-len",
    "256",
    "--kv-cache-memory-bytes",
    "1M",
    "--log-level",
    "error",
]


@pytest.fixture(autouse=True)
def quiet_root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_text_is_streamed_and_ends_with_a_newline(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *SMALL, "--prompt", "grüß dich", "--max-tokens", "50"]) == 0
    assert capsys.readouterr().out == "grüß dich\n"


def test_sampling_flags_are_passed_to_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *SMALL, "--prompt", "abcdef", "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out == "abc\n"
    with_stop = ["--prompt", "abcdef", "--stop", "d", "--max-tokens", "50"]
    assert main(["generate", *SMALL, *with_stop]) == 0
    assert capsys.readouterr().out == "abc\n"


def test_prompt_may_come_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("two\nlines\n"))
    assert main(["generate", *SMALL, "--no-stream", "--max-tokens", "50"]) == 0
    assert capsys.readouterr().out == "two\nlines\n"


def test_several_prompts_are_printed_as_json_lines_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["--prompt", "one", "--prompt", "two", "--json", "--max-tokens", "50"]
    assert main(["generate", *SMALL, *arguments]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["prompt"], line["text"], line["finish_reason"]) for line in lines] == [
        ("one", "one", "stop"),
        ("two", "two", "stop"),
    ]


def test_prompt_is_a_user_message_unless_it_is_raw(capsys: pytest.CaptureFixture[str]) -> None:
    """The scripted model answers the last user message, or repeats a prompt without turns."""
    spelled = "<|im_start|>user\nping<|im_end|>\n<|im_start|>assistant\n"
    arguments = ["--prompt", spelled, "--max-tokens", "80"]
    assert main(["generate", *SMALL, *arguments]) == 0
    assert capsys.readouterr().out == spelled + "\n"
    assert main(["generate", *SMALL, *arguments, "--raw"]) == 0
    assert capsys.readouterr().out == "ping\n"


def test_terminal_names_the_chat_template(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--prompt", "ping", "--max-tokens", "50"]
    assert main(["generate", *SMALL, *arguments]) == 0
    assert CHAT_NOTE not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["generate", *SMALL, *arguments]) == 0
    assert CHAT_NOTE in capsys.readouterr().err.splitlines()
    assert main(["generate", *SMALL, *arguments, "--raw"]) == 0
    assert CHAT_NOTE not in capsys.readouterr().err


def test_failed_request_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *SMALL, "--prompt", "abcdef", "--scripted-fail-at-token", "2"]) == 1
    assert "request failed: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "status", "message"),
    [
        (["--prompt", "a", "--temperature", "-1"], 1, "temperature: must be at least 0, not -1.0."),
        (
            ["--prompt", "a", "--max-tokens", "x"],
            2,
            "argument --max-tokens: invalid int value: 'x'",
        ),
        (["--prompt", "a", "--max-model-len", "1.5K"], 2, "Did you mean to use 1.5k instead?"),
    ],
)
def test_wrong_value_prints_one_error_block(
    argv: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", *SMALL, *argv]) == status
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_missing_prompt_is_reported_before_the_engine_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["generate", *SMALL]) == 2
    assert "no prompt: standard input is empty" in capsys.readouterr().err
