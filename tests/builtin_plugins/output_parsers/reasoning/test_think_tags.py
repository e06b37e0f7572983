"""Reasoning between tags: missing tags, switches and prompts, in every chunking."""

from __future__ import annotations

import pytest

from builtin_plugins.output_parsers.api import ParseRequest, ReasoningFormat
from builtin_plugins.output_parsers.reasoning.think import DEEPSEEK_R1, QWEN3, THINK
from builtin_plugins.output_parsers.testing import Parsed, Reader
from builtin_plugins.output_parsers.tools.json_calls import HERMES

ON = ParseRequest()
OFF = ParseRequest(template_kwargs={"enable_thinking": False})
OPENED = ParseRequest(prompt_end="<|im_start|>assistant\n<think>\n")
CLOSED = ParseRequest(prompt_end="<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("given", "request_", "text", "reasoning", "content"),
    [
        (DEEPSEEK_R1, ON, "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        (DEEPSEEK_R1, ON, "hm</think>Yes.", "hm", "Yes."),
        (DEEPSEEK_R1, ON, "hm, and no end", "hm, and no end", ""),
        (DEEPSEEK_R1, ON, "hm</thi", "hm</thi", ""),
        (DEEPSEEK_R1, ON, "a</think>b</think>c", "a", "bc"),
        (DEEPSEEK_R1, ON, "", "", ""),
        (DEEPSEEK_R1, CLOSED, "Yes.", "", "Yes."),
        (QWEN3, ON, "<think>\nhm\n</think>\n\nYes.", "hm", "Yes."),
        (QWEN3, ON, "Yes.", "Yes.", ""),
        (THINK, ON, "Yes.", "", "Yes."),
        (QWEN3, ON, "<think>größer 漢字 🙂", "größer 漢字 🙂", ""),
        (QWEN3, OPENED, "hm</think>Yes.", "hm", "Yes."),
        (QWEN3, CLOSED, "Yes, <think> it is.", "", "Yes, <think> it is."),
        (QWEN3, OFF, "<think>is a tag.", "", "<think>is a tag."),
    ],
)
def test_reasoning_between_tags(
    given: ReasoningFormat, request_: ParseRequest, text: str, reasoning: str, content: str
) -> None:
    found = Reader(reasoning=given, request=request_).check(text)
    assert found == Parsed(content=content, reasoning=reasoning)


def test_call_within_closed_reasoning_is_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    found = Reader(tools=HERMES, reasoning=QWEN3).check(f"<think>I could {call}</think>{call}")
    assert found == Parsed(calls=(("f", {}),), reasoning=f"I could {call}")


def test_call_ends_unclosed_reasoning() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    found = Reader(tools=HERMES, reasoning=QWEN3).check(f"<think>I look.\n{call}")
    assert found == Parsed(calls=(("f", {}),), reasoning="I look.")
