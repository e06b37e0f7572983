"""Thoughts between `<think>` and `</think>`: the families differ in who writes the first tag, and in the switch.

Formats: the chat templates of deepseek-ai/DeepSeek-R1 and Qwen/Qwen3-8B.
"""

from __future__ import annotations

from core.api import ParseRequest, Reading, ReasoningFormat, Scan

START, END = "<think>", "</think>"


def always(scan: Scan, request: ParseRequest) -> Reading:
    """Read thoughts up to the end tag; the template, or the model, has begun them."""
    if request.prompt_opens(START, END) is not False:
        yield from scan.maybe(START)
        yield from scan.reasoning(END)


def if_begun(scan: Scan, request: ParseRequest) -> Reading:
    """Read thoughts where the prompt or the model begins them; all else is content."""
    opened = request.prompt_opens(START, END)
    if opened is None:
        opened = request.template_kwargs.get("enable_thinking") is not False and (yield from scan.maybe(START))
    if opened:
        yield from scan.reasoning(END)


DEEPSEEK_R1 = ReasoningFormat(always, markers=(START, END), ends=(END,))
QWEN3 = ReasoningFormat(if_begun, markers=(START, END), ends=(END,))
