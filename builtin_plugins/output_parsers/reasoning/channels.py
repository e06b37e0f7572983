"""Families that write messages on channels: thoughts on one of their own; calls stay as they are,
for the tool parser.

Formats: OpenAI's harmony response format (openai/gpt-oss-20b), the chat templates of
thinkingmachines/Inkling and meta's Muse Glimmer, and the XTML encoding published with
moonshotai/Kimi-K3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final

from core.api import Channels, Kind, ParseRequest, Reading, ReasoningFormat, Scan, read_channels


def kind(thoughts: str, call: str, header: str, hidden: str = "(?!)") -> Kind:
    """Tell a message by what is found in its header; all others are answers."""
    kinds: tuple[tuple[Kind, str], ...] = (
        ("thoughts", thoughts),
        ("hidden", hidden),
        ("call", call),
    )
    return next((name for name, found in kinds if re.search(found, header)), "answer")


HARMONY: Final = Channels(
    starts=("<|start|>", "<|channel|>", "commentary<|channel|>", "assistant<|channel|>"),
    heads=("<|message|>",),
    ends=("<|end|>", "<|return|>", "<|call|>"),
    kind=partial(
        kind,
        r"^(?!.*to=).*<\|channel\|>\s*analysis",
        "to=",
        hidden=r"to=(?:assistant|browser|container|python)(?![^\s<])",
    ),
    goes_on=("to=",),
    apart="\n",
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
    ends=(
        *(f"<|close|>{name}<|sep|>" for name in ("think", "response", "message")),
        "<|close|>think",
    ),
    kind=partial(kind, ">think<", "(?<!>response)(?<!>message)<.sep"),
)
MUSE: Final = Channels(
    starts=("<|start|>",),
    heads=("<|message|>",),
    ends=("<|eom|>", "<|eot|>"),
    kind=partial(
        kind,
        r"to=self(?![\w.-])|^(?!.*to=)",
        r"to=(?!(?:user|commentary)(?![\w.-]))",
        hidden=r"to=developer(?![\w.-])",
    ),
    goes_on=("to=", "<|message|>"),
    stops=("<|eot|>",),
)


def form(
    channels: Channels,
    end: str,
    before_end: str,
    inside: Callable[[ParseRequest], Kind | None],
    *more: str,
    inline: Callable[[ParseRequest], tuple[str, ...]] = lambda request: (),
) -> ReasoningFormat:
    """Return the format of some channels; `before_end` closes thoughts in front of the end.

    `inside`: which message the prompt has begun.
    """

    def read(scan: Scan, request: ParseRequest) -> Reading:
        yield from read_channels(channels, scan, None, inside(request), inline(request))

    tags = [text for text in channels.markers if text.startswith("<") and text.count("<|") == 1]
    return ReasoningFormat(
        read,
        markers=(*tags, *more),
        ends=(end,),
        closes=before_end + end,
        signs=channels.heads + channels.ends[:1],
    )


def begun(thoughts: str, request: ParseRequest) -> Kind | None:
    """Say that the prompt has begun thoughts where it ends so."""
    return "thoughts" if thoughts and request.prompt_end.rstrip().endswith(thoughts) else None


def begun_by_kimi(request: ParseRequest) -> Kind:
    """Say what the prompt has begun: thoughts unless it says otherwise, or the request."""
    given = [
        request.template_kwargs[name]
        for name in ("enable_thinking", "thinking")
        if name in request.template_kwargs
    ]
    answer = request.prompt_end.rstrip().endswith("<|open|>response<|sep|>")
    return "answer" if answer or (given and not given[0]) else "thoughts"


def muse_inline(request: ParseRequest) -> tuple[str, ...]:
    """Return the headers that the model may write into a message that it does not end."""
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    recipients = (
        "self",
        "user",
        "commentary",
        "developer",
        *tools,
        *(f"{tool}.{tool}" for tool in tools),
    )
    return ("<|message|>", *(f"to={recipient}<|message|>" for recipient in recipients))


KIMI_K3_FORMAT: Final = form(
    KIMI_K3, "<|open|>response<|sep|>", "<|close|>think<|sep|>", begun_by_kimi, "<|close|>"
)
HARMONY_FORMAT: Final = form(
    HARMONY, "<|channel|>final<|message|>", "<|end|><|start|>assistant", partial(begun, "")
)
INKLING_FORMAT: Final = form(
    INKLING,
    "<|content_text|>",
    "<|end_message|><|message_model|>",
    partial(begun, "<|content_thinking|>"),
)
MUSE_FORMAT: Final = form(
    MUSE,
    "to=user<|message|>",
    "<|eom|><|start|>assistant ",
    partial(begun, "to=self<|message|>"),
    inline=muse_inline,
)
