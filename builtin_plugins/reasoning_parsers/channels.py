"""Families that write messages on channels: thoughts on one of their own; calls stay as they are, for the tool parser.

Formats: OpenAI's harmony response format (openai/gpt-oss-20b), the chat templates of thinkingmachines/Inkling and
meta's Muse Glimmer, and the XTML encoding published with moonshotai/Kimi-K3.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Final

from core.api import Channels, Kind, ParseRequest, Reading, ReasoningFormat, Scan, read_channels


def kind(thoughts: str, call: str, header: str) -> Kind:
    """Tell a message by what is found in its header; all others are answers."""
    return "thoughts" if re.search(thoughts, header) else "call" if re.search(call, header) else "answer"


HARMONY: Final = Channels(
    starts=("<|start|>", "<|channel|>"),
    heads=("<|message|>",),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    kind=partial(kind, r"^(?!.*to=).*<\|channel\|>\s*analysis", "to="),
    goes_on=("to=",),
)
INKLING: Final = Channels(
    starts=("<|message_model|>",),
    heads=("<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"),
    ends=("<|end_message|>", "<|content_model_end_sampling|>"),
    kind=partial(kind, "thinking", "invoke"),
    goes_on=("<|content_thinking|>", "<|content_text|>", "<|content_invoke_tool_json|>"),
)
KIMI_K3: Final = Channels(
    starts=("<|open|>",),
    heads=("<|sep|>",),
    ends=tuple(f"<|close|>{name}<|sep|>" for name in ("think", "response", "message")),
    kind=partial(kind, ">think<", "(?<!>response)(?<!>message)<.sep"),
)
MUSE: Final = Channels(
    starts=("<|start|>",),
    heads=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    kind=partial(kind, r"to=self\b", r"to=(?!user\b)"),
    goes_on=("to=", "<|message|>"),
)


def form(channels: Channels, end: str, before_end: str, begun: str = "", *more: str) -> ReasoningFormat:
    """Return the format of some channels; `before_end` closes thoughts in front of the end.

    `begun`: what a prompt ends with that has begun the thoughts.
    """

    def read(scan: Scan, request: ParseRequest) -> Reading:
        opened = bool(begun) and request.prompt_end.rstrip().endswith(begun)
        yield from read_channels(channels, scan, None, "thoughts" if opened else None)

    tags = [text for text in channels.markers if text.count("<|") == 1]
    return ReasoningFormat(
        read, markers=(*tags, *more), ends=(end,), closes=before_end + end, signs=channels.heads + channels.ends[:1]
    )


KIMI_K3_FORMAT: Final = form(
    KIMI_K3, "<|open|>response<|sep|>", "<|close|>think<|sep|>", "<|open|>think<|sep|>", "<|close|>"
)
HARMONY_FORMAT: Final = form(HARMONY, "<|channel|>final<|message|>", "<|end|><|start|>assistant")
INKLING_FORMAT: Final = form(INKLING, "<|content_text|>", "<|end_message|><|message_model|>", "<|content_thinking|>")
MUSE_FORMAT: Final = form(MUSE, "to=user<|message|>", "<|eom|><|start|>assistant ", "to=self<|message|>")
