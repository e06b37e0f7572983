"""`engine parse`: the same message whole and in pieces, parsers by name or by what a chat template
suggests.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from core.cli.main import main
from tests.over_http import joined

TEXT = 'hm</think>Look:<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def run(text: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        status = main(["parse", *arguments])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def test_streamed_and_whole_parsing_agree(parse) -> None:
    flags = ["--tool-call-parser", "hermes", "--reasoning-parser", "deepseek_r1", "--json"]
    for cut in (
        ["--chunk-size", "1"],
        ["--seed", "3"],
        ["--chunk-size", "7", "--special", "</think>"],
    ):
        status, printed = parse(TEXT, *flags, *cut)
        found = json.loads(printed)
        assert status == 0
        message = found["message"]
        deltas = [step["delta"] for step in found["stream"]]
        assert "".join(step["text"] for step in found["stream"]) == TEXT
        for part in ("reasoning", "content"):
            assert "".join(delta.get(part, "") for delta in deltas) == message[part]
        assert [call["function"] for call in joined(deltas)["tool_calls"]] == [
            call["function"] for call in message["tool_calls"]
        ]


def test_text_without_parsers_is_content(parse) -> None:
    assert json.loads(parse("<think>x", "--json")[1])["message"] == {"content": "<think>x"}
    assert "content           '<think>x'" in parse("<think>x")[1]


def test_recoveries_are_reported(parse) -> None:
    loose = '<tool_call><tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>'
    recoveries = json.loads(parse(loose, "--tool-call-parser", "hermes", "--json")[1])["recoveries"]
    assert recoveries == ["a begin written twice", "} is missing before </tool_call>"]
    assert (
        "recovered         a begin written twice" in parse(loose, "--tool-call-parser", "hermes")[1]
    )
    assert "recover" not in parse(TEXT, "--tool-call-parser", "hermes")[1]


def test_tools_give_arguments_their_types(parse, tmp_path: Path) -> None:
    tools = [
        {
            "type": "function",
            "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}},
        }
    ]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    text = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"
    assert 'f({"a": 1})' in parse(text, "--tool-call-parser", "glm45")[1]
    assert (
        'f({"a": "1"})'
        in parse(text, "--tool-call-parser", "glm45", "--tools", str(tmp_path / "tools.json"))[1]
    )


@pytest.mark.parametrize(
    ("template", "tool_parser", "reasoning_parser"),
    [
        (
            "<tool_call>\n{{ call }}\n</tool_call>{% if enable_thinking %}<think></think>",
            "hermes",
            "think",
        ),
        (
            "[gMASK]<tool_call>{{ n }}<arg_key><arg_value>{% if enable_thinking %}</think>",
            "glm45",
            "glm45",
        ),
        ("<tool_call>\n<function={{ n }}>\n<parameter={{ k }}>", "qwen3_coder", "none"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\n```json",
            "deepseek_v3",
            "none",
        ),
        (
            "<｜Assistant｜>{% if not thinking %}</think>{% endif %}<｜tool▁call▁begin｜><｜tool▁sep｜>",
            "deepseek_v31",
            "deepseek_v3",
        ),
        ("<|channel|>analysis<|message|>{{ x }}<|end|>", "openai", "openai_gptoss"),
        ("[INST][TOOL_CALLS][THINK][/THINK]", "mistral", "mistral"),
        ("<|tool_calls_section_begin|><|tool_call_begin|><think></think>", "kimi_k2", "kimi_k2"),
        ("{{ messages }}", "none", "none"),
    ],
)
def test_a_chat_template_suggests_parsers(
    template: str, tool_parser: str, reasoning_parser: str, parse, tmp_path: Path
) -> None:
    (tmp_path / "chat_template.jinja").write_text(template)
    _, printed = parse("x", "--model", str(tmp_path))
    assert printed.splitlines()[:2] == [
        f"tool-call-parser  {tool_parser}",
        f"reasoning-parser  {reasoning_parser}",
    ]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--tool-call-parser", "hermis"], "did you mean 'hermes'?"),
        (["--reasoning-parser", "qwen33"], "did you mean 'qwen3'?"),
        (["--tools", "/nowhere.json"], "cannot be read"),
        (["--template-kwargs", "{"], "--template-kwargs: expected JSON"),
        (["--model", "/nowhere"], "expected a folder with a chat template"),
    ],
)
def test_invalid_request_is_rejected(arguments: list[str], error: str, parse) -> None:
    status, printed = parse("x", *arguments)
    assert status != 0
    assert error in printed


def test_response_template_of_a_checkpoint_is_used(parse, tmp_path: Path) -> None:
    template = {
        "fields": {
            "thinking": {"open": "<hm>", "close": "</hm>"},
            "tool_calls": {
                "open": "@call",
                "close": "@end",
                "content": "json",
                "transform": {"function": "{content}"},
            },
        }
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"response_template": template}))
    text = '<hm>so</hm>Look: @call {"name": "f", "arguments": {}} @end'
    flags = ("--tool-call-parser", "hf", "--reasoning-parser", "hf")
    message = json.loads(parse(text, *flags, "--model", str(tmp_path), "--json")[1])["message"]
    assert (message["reasoning"], message["content"]) == ("so", "Look:")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "f", "arguments": "{}"}
    ]
    status, printed = parse(text, *flags)
    assert status != 0
    assert "is missing in tokenizer_config.json" in printed
