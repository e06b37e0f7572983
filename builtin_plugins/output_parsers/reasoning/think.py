"""Thoughts between two tags: families differ in the tags, in who writes the first one, and in the
switch.

Formats: the chat templates of deepseek-ai/DeepSeek-R1, DeepSeek-V3.1 and the encoding published
with V3.2 and V4, Qwen/Qwen3-8B, zai-org/GLM-4.5 and GLM-4.7, ibm-granite/granite-3.2-8b-instruct
and granite-4.2-8b, tencent/Hunyuan-A13B-Instruct, Hy3 and Hy4, mistralai/Magistral-Small-2509,
allenai/Olmo-3-7B-Think, ByteDance-Seed/Seed-OSS-36B-Instruct, stepfun-ai/step3 and Step-3.5-Flash,
baidu/ERNIE-4.5-21B-A3B-Thinking, MiniMaxAI/MiniMax-M2 and MiniMax-M3, moonshotai/Kimi-K2-Thinking,
nvidia/NVIDIA-Nemotron-3-Nano, Hcompany/Holo2-8B, google/gemma-4, XiaomiMiMo/MiMo-V2-Flash,
LLM360/K2-Horizon, inclusionAI/Ling-3 and pfnet/plamo-3; for Cohere's Command A Reasoning,
openbmb/MiniCPM5 and MiniCPM-V, Step 5 and poolside's Laguna what llama.cpp and vLLM say of theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from core.api import ParseRequest, Reading, ReasoningFormat, Scan

OFF: Final = (False, None, "", "no_think", "disabled")
"""Values of a template's switch that say no."""
CODER_CALLS: Final = tuple(
    f"<tool_call>{space}{begin}" for space in ("", "\n") for begin in ("<function=", "{")
)
"""Thoughts often name the tag alone: a call it begins with what follows."""
DEEPSEEK_CALLS: Final = "<｜tool▁calls▁begin｜>"
KIMI_CALLS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")


@dataclass(frozen=True, slots=True)
class Think:
    """How a family writes its thoughts. What the prompt ends with counts more than any switch."""

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    begun: bool = True
    """The output begins with thoughts, with a start tag or without; False: only with a start tag.
    """
    switches: tuple[str, ...] = ("enable_thinking", "thinking")
    """Names of the template's argument that turns thoughts on and off."""
    on: bool = True
    """Without a switch there are thoughts."""
    begins: tuple[str, ...] = ()
    """Values of the switch with which the output begins with thoughts, where else a start tag must
    say so.
    """
    again: bool = False
    """Thoughts may come again behind content or calls."""
    label: str = ""
    """What may stand behind a start tag and is no thought."""
    calls: tuple[str, ...] = ()
    """What begins calls, and so ends thoughts that no tag ends."""
    answer: tuple[str, ...] = ()
    """What may be around the answer."""
    dropped: tuple[str, ...] = ()
    """What else is never shown."""
    once: bool = False
    """Behind the first, an end is text like any other."""


def read(think: Think, scan: Scan, request: ParseRequest) -> Reading:
    """Read thoughts, then the answer, and perhaps both again."""
    opened = prompt_opens(think, request)
    on = switched(think, request)
    may_begin = on is not False if opened is None else opened
    if may_begin:
        found = yield from scan.maybe(*think.starts)
        opened = opened or think.begun or found is not None or on in think.begins
    if opened:
        yield from thoughts(think, scan)
    elif (
        may_begin and request.whole
    ):  # nobody sees the answer before it is known whether thoughts end in it
        found = yield from scan.thoughts_or_text(think.starts, think.ends)
        if found in think.ends:
            scan.drop()
        elif found:
            scan.unread(found)
    if not (opened and think.once):
        yield from answer(think, scan)


def answer(think: Think, scan: Scan) -> Reading:
    """Show the answer without the tags that have no place in it, and the thoughts that come in it."""
    starts = think.starts if think.again else ()
    while found := (yield from scan.text(*starts, *think.ends, *think.answer, *think.dropped)):
        if found in starts:
            yield from thoughts(think, scan)
        elif found in think.answer:
            scan.drop()


def thoughts(think: Think, scan: Scan) -> Reading:
    """Show what is thought up to an end tag, or without one up to a call."""
    found = think.starts[0]
    while found in think.starts or found in think.dropped:
        if think.label:
            yield from scan.maybe(think.label)
        found = yield from scan.reasoning(*think.starts, *think.ends, *think.calls, *think.dropped)
        if found in think.calls:  # unless they end behind it: thoughts about calls call nothing
            scan.unread(found)
            found = yield from scan.thoughts_or_text(think.starts, think.ends)
            if found is not None:
                scan.drop()


def prompt_opens(think: Think, request: ParseRequest) -> bool | None:
    """Say whether the prompt ends inside of thoughts, behind them, or says nothing."""
    for start, end in zip(think.starts, think.ends, strict=True):
        opened = request.prompt_opens(start, end)
        if opened is not None:
            return opened
    return None


def switched(think: Think, request: ParseRequest) -> Any:
    """Return what the request says of thoughts: False if it wants none, else True or how it wants
    them.
    """
    given = [
        request.template_kwargs[name] for name in think.switches if name in request.template_kwargs
    ]
    if not given:
        return think.on
    return given[0] not in OFF and (given[0] if isinstance(given[0], str) else True)


def form(*signs: str, **given: object) -> ReasoningFormat:
    """Return the format of thoughts between tags that are special tokens where the tokenizer has
    them.
    """
    think = Think(**given)  # type: ignore[arg-type]
    calls = [call[: call.find(">") + 1] or call for call in think.calls]
    markers = (*think.starts, *think.ends, *calls, *think.answer, *think.dropped)
    return ReasoningFormat(
        partial(read, think),
        markers=tuple(dict.fromkeys(markers)),
        starts=() if think.begun else think.starts,
        ends=think.ends,
        signs=(*think.ends[:1], *signs),
    )


def read_none(scan: Scan, request: ParseRequest) -> Reading:
    """Leave everything content."""
    yield from ()


def read_appended(scan: Scan, request: ParseRequest) -> Reading:
    """Leave everything content, with the start tag that the prompt has, or is taken to have if it
    does not say.
    """
    if (yield from scan.maybe("<think>")) or request.prompt_opens(
        "<think>", "</think>"
    ) is not False:
        scan.say("<think>")


def optional(*signs: str, **given: object) -> ReasoningFormat:
    """Return the format of thoughts that begin with a start tag where there are any."""
    return form(*signs, begun=False, **given)


COHERE_COMMAND: Final = optional(
    "<|START_RESPONSE|>",
    starts=("<|START_THINKING|>",),
    ends=("<|END_THINKING|>",),
    calls=("<|START_ACTION|>",),
    answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
DEEPSEEK_R1: Final = form(switches=(), calls=(DEEPSEEK_CALLS,))
DEEPSEEK_V3: Final = form("<｜Assistant｜>", "thinking", on=False, calls=(DEEPSEEK_CALLS,))
DEEPSEEK_V4: Final = form(
    "｜DSML｜", on=False, again=True, calls=("<｜DSML｜tool_calls>", "<｜DSML｜ calls>")
)
ERNIE45: Final = form("<response>", answer=("<response>", "</response>"), calls=CODER_CALLS)
GEMMA4: Final = optional(
    starts=("<|channel>",),
    ends=("<channel|>",),
    again=True,
    label="thought\n",
    calls=("<|tool_call>",),
)
GLM45: Final = form("enable_thinking", "[gMASK]", again=True, calls=("<tool_call>",))
GRANITE: Final = optional(
    starts=("Here is my thought process:", "Here's my thought process:"),
    ends=("Here is my response:", "Here's my response:"),
    once=True,
)
HUNYUAN_A13B: Final = optional(
    "<answer>", answer=("<answer>", "</answer>"), calls=("<tool_calls>",)
)
HY_V3: Final = form(
    "reasoning_effort",
    switches=("reasoning_effort",),
    on=False,
    again=True,
    calls=("<tool_calls>", "<tool_call>"),
)
HY_V4: Final = form(
    "reasoning_effort",
    starts=("<think:opensource>", "<think>"),
    ends=("</think:opensource>", "</think>"),
    switches=("reasoning_effort",),
    again=True,
    calls=("<tool_calls:opensource>", "<tool_call:opensource>", "<tool_calls>", "<tool_call>"),
)
IDENTITY: Final = ReasoningFormat(read_none)
K2_HORIZON: Final = form(
    starts=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ends=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    calls=("<ifm|tool_calls>",),
)
KIMI_K2: Final = form(KIMI_CALLS[0], calls=KIMI_CALLS, again=True)
MINICPM5: Final = replace(optional(calls=("<function name=",)), signs=())
MINICPMV: Final = replace(
    form(
        calls=CODER_CALLS,
        dropped=(
            "<|im_end|>",
            *(f"<{bar}reserved_{i}{bar}>" for i in range(12, 16) for bar in ("", "|")),
        ),
    ),
    signs=(),
)
MINIMAX_M2: Final = form(
    "<minimax:tool_call>", switches=(), again=True, calls=("<minimax:tool_call>",)
)
MINIMAX_M2_APPEND: Final = ReasoningFormat(read_appended, markers=("<think>",), ends=("</think>",))
MINIMAX_M3: Final = optional(
    starts=("<mm:think>",),
    ends=("</mm:think>",),
    switches=("thinking_mode",),
    begins=("enabled",),
    again=True,
    calls=("]<]minimax[>[<tool_call>",),
)
MISTRAL: Final = optional(
    starts=("[THINK]", "<think>"),
    ends=("[/THINK]", "</think>"),
    switches=(),
    again=True,
    calls=("[TOOL_CALLS]",),
)
OLMO3: Final = replace(form(switches=(), calls=("<function_calls>",)), signs=())
ON_BY_DEFAULT: Final = replace(form(calls=CODER_CALLS), signs=())
PLAMO3: Final = form(
    starts=("<|plamo:begin_think:plamo|>",),
    ends=("<|plamo:end_think:plamo|>",),
    again=True,
    calls=("<|plamo:begin_tool_requests:plamo|>",),
    dropped=("<|plamo:tag|>",),
)
POOLSIDE_V1: Final = replace(form(on=False, calls=("<tool_call>",)), signs=())
QWEN3: Final = replace(form(calls=CODER_CALLS), signs=())
SEED_OSS: Final = form(
    starts=("<seed:think>",), ends=("</seed:think>",), calls=("<seed:tool_call>",)
)
STEP3: Final = replace(form(switches=(), calls=("<｜tool_calls_begin｜>",)), signs=())
STEP3P5: Final = replace(form(switches=(), calls=CODER_CALLS), signs=())
THINK: Final = optional("enable_thinking", calls=CODER_CALLS)
