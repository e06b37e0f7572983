"""Reasoning between two tags. Families differ in the tags, the start of the output and the switch.

Formats: the chat templates of deepseek-ai/DeepSeek-R1, DeepSeek-V3.1 and the encoding published
with V3.2 and V4, Qwen/Qwen3-8B, zai-org/GLM-4.5 and GLM-4.7, ibm-granite/granite-3.2-8b-instruct
and granite-4.2-8b, tencent/Hunyuan-A13B-Instruct, Hy3 and Hy4, mistralai/Magistral-Small-2509,
allenai/Olmo-3-7B-Think, ByteDance-Seed/Seed-OSS-36B-Instruct, stepfun-ai/step3 and Step-3.5-Flash,
baidu/ERNIE-4.5-21B-A3B-Thinking, MiniMaxAI/MiniMax-M2 and MiniMax-M3, moonshotai/Kimi-K2-Thinking,
nvidia/NVIDIA-Nemotron-3-Nano, Hcompany/Holo2-8B, google/gemma-4, XiaomiMiMo/MiMo-V2-Flash,
LLM360/K2-Horizon, inclusionAI/Ling-3 and pfnet/plamo-3. Cohere's Command A Reasoning,
openbmb/MiniCPM5 and MiniCPM-V, Step 5 and poolside's Laguna follow llama.cpp and vLLM.
The parser `hf` follows the checkpoint's own response template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any, Final, Literal

from builtin_plugins.output_parsers.api import OutputReader, Reading, read_response_template
from builtin_plugins.output_parsers.contract import ParseRequest, ReasoningFormat
from builtin_plugins.output_parsers.reasoning_bounds import ReasoningBounds
from core.api import ConfigError

OFF: Final = (False, None, "", "no_think", "disabled")
"""Values that switch reasoning off."""
CODER_CALLS: Final = tuple(
    f"<tool_call>{space}{begin}" for space in ("", "\n") for begin in ("<function=", "{")
)
"""Starts of calls; the tag alone often occurs within reasoning."""
DEEPSEEK_CALLS: Final = "<｜tool▁calls▁begin｜>"
KIMI_CALLS: Final = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")


@dataclass(frozen=True, slots=True)
class Think:
    """A family's reasoning syntax. The end of the prompt takes precedence over any switch."""

    starts: tuple[str, ...] = ("<think>",)
    """Start tags."""
    ends: tuple[str, ...] = ("</think>",)
    """End tags, one per start tag."""
    begun: bool = True
    """The output starts with reasoning even without a start tag."""
    switches: tuple[str, ...] = ("enable_thinking", "thinking")
    """Names of the template argument that switches reasoning on and off."""
    on: bool = True
    """Reasoning is on by default."""
    begins: tuple[str, ...] = ()
    """Values of the switch with which the output starts with reasoning, without a start tag."""
    again: bool = False
    """Reasoning may resume after content or calls."""
    label: str = ""
    """Optional text after a start tag that is not reasoning."""
    calls: tuple[str, ...] = ()
    """Texts that start calls, and end reasoning without an end tag."""
    answer: tuple[str, ...] = ()
    """Tags around the content."""
    dropped: tuple[str, ...] = ()
    """Further texts that are never visible."""
    once: bool = False
    """Only the first end counts; later ones are text."""


def read_think(think: Think, reader: OutputReader, request: ParseRequest) -> Reading:
    """Read reasoning, then content, and both again if the family repeats them."""
    if request.is_constrained:  # no text of the answer is a tag or a call
        think = replace(think, calls=(), dropped=())
    opened = prompt_opens(think, request)
    on = reasoning_switch(think, request)
    may_begin = on is not False if opened is None else opened
    if may_begin:
        found = yield from reader.skip_optional(*think.starts)
        opened = opened or think.begun or found is not None or on in think.begins
    if opened:
        yield from read_reasoning(think, reader)
    elif (
        may_begin and request.whole and not request.is_constrained
    ):  # nothing is sent yet, so a later end tag still counts
        found = yield from reader.reasoning_or_content(think.starts, think.ends)
        if found in think.ends:
            reader.drop()
        elif found:
            reader.unread(found)
    if not (opened and think.once) and not request.is_constrained:
        yield from read_content(think, reader)


def read_content(think: Think, reader: OutputReader) -> Reading:
    """Show content without stray tags, and the reasoning within it."""
    starts = think.starts if think.again else ()
    while found := (
        yield from reader.content_until_call(*starts, *think.ends, *think.answer, *think.dropped)
    ):
        if found in starts:
            yield from read_reasoning(think, reader)
        elif found in think.answer:
            reader.drop()


def read_reasoning(think: Think, reader: OutputReader) -> Reading:
    """Show reasoning up to an end tag, or without one up to a call."""
    found = think.starts[0]
    while found in think.starts or found in think.dropped:
        if think.label:
            yield from reader.skip_optional(think.label)
        found = yield from reader.reasoning_until(
            *think.starts, *think.ends, *think.calls, *think.dropped
        )
        if found in think.calls:  # a call that an end tag follows is reasoning
            reader.unread(found)
            found = yield from reader.reasoning_or_content(think.starts, think.ends)
            if found is not None:
                reader.drop()


def prompt_opens(think: Think, request: ParseRequest) -> bool | None:
    """Return True if the prompt ends inside reasoning, False if after it, None if unknown."""
    for start, end in zip(think.starts, think.ends, strict=True):
        opened = request.prompt_opens(start, end)
        if opened is not None:
            return opened
    return None


def think_bounds(think: Think, request: ParseRequest) -> ReasoningBounds:
    """Return where the reasoning lies that `read_think` finds, unless tags are missing."""
    opened = prompt_opens(think, request)
    on = reasoning_switch(think, request)
    is_inside = opened or think.begun or on in think.begins
    at_start: Literal["inside", "optional", "outside"] = "inside" if is_inside else "optional"
    if opened is False or (opened is None and on is False):
        at_start = "outside"
    resumes = think.again and not request.is_constrained
    return ReasoningBounds(ends=think.ends, starts=think.starts, at_start=at_start, resumes=resumes)


def off_switches(think: Think) -> dict[str, Any]:
    """Return the template arguments that switch a family's reasoning off."""
    names = {"reasoning_effort": "no_think", "thinking_mode": "disabled"}
    return {name: names.get(name, False) for name in think.switches}


def reasoning_switch(think: Think, request: ParseRequest) -> Any:
    """Return the request's reasoning switch: False if off, else True or a string value."""
    given = [
        request.template_kwargs[name] for name in think.switches if name in request.template_kwargs
    ]
    if not given:
        return think.on
    if given[0] in OFF:
        return False
    return given[0] if isinstance(given[0], str) else True


def think_format(*template_hints: str, **given: object) -> ReasoningFormat:
    """Return the format of reasoning between tags, which may be special tokens."""
    think = Think(**given)  # type: ignore[arg-type]
    calls = [call[: call.find(">") + 1] or call for call in think.calls]
    markers = (*think.starts, *think.ends, *calls, *think.answer, *think.dropped)
    return ReasoningFormat(
        partial(read_think, think),
        markers=tuple(dict.fromkeys(markers)),
        starts=() if think.begun else think.starts,
        ends=think.ends,
        find_bounds=partial(think_bounds, think),
        off_switches=off_switches(think),
        template_hints=(*think.ends[:1], *template_hints),
    )


def read_none(reader: OutputReader, request: ParseRequest) -> Reading:
    """Leave everything content."""
    yield from ()


def read_appended(reader: OutputReader, request: ParseRequest) -> Reading:
    """Leave everything content, after the start tag that the prompt has or is assumed to have."""
    if (yield from reader.skip_optional("<think>")) or request.prompt_opens(
        "<think>", "</think>"
    ) is not False:
        reader.add_content("<think>")


def format_from_template(template: Mapping[str, Any] | None) -> ReasoningFormat:
    """Return the format of a checkpoint's template. Raises `ConfigError` for unsupported parts."""
    found = read_response_template(template)
    if found.thinking is None:
        raise ConfigError(
            "response_template.fields.thinking: is missing. Remove --reasoning-parser, or use the "
            "model family's own instead of hf."
        )
    pairs = product(found.thinking.start_texts, found.thinking.end_texts)
    starts, ends = zip(*pairs, strict=True)
    tags = (*starts, *ends)
    made = think_format(
        starts=starts,
        ends=ends,
        begun=found.thinking.begun,
        again=True,
        calls=found.tool_calls.start_texts if found.tool_calls else (),
        answer=tuple(text for text in found.around_content if text not in tags),
        dropped=tuple(text for text in found.dropped if text not in tags),
    )
    return replace(made, markers=found.markers, template_hints=())


def optional_think(*template_hints: str, **given: object) -> ReasoningFormat:
    """Return the format of optional reasoning, which needs a start tag."""
    return think_format(*template_hints, begun=False, **given)


COHERE_COMMAND: Final = optional_think(
    "<|START_RESPONSE|>",
    starts=("<|START_THINKING|>",),
    ends=("<|END_THINKING|>",),
    calls=("<|START_ACTION|>",),
    answer=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
DEEPSEEK_R1: Final = think_format(switches=(), calls=(DEEPSEEK_CALLS,))
DEEPSEEK_V3: Final = think_format("<｜Assistant｜>", "thinking", on=False, calls=(DEEPSEEK_CALLS,))
DEEPSEEK_V4: Final = think_format(
    "｜DSML｜", on=False, again=True, calls=("<｜DSML｜tool_calls>", "<｜DSML｜ calls>")
)
ERNIE45: Final = think_format("<response>", answer=("<response>", "</response>"), calls=CODER_CALLS)
GEMMA4: Final = optional_think(
    starts=("<|channel>",),
    ends=("<channel|>",),
    again=True,
    label="thought\n",
    calls=("<|tool_call>",),
)
GLM45: Final = think_format("enable_thinking", "[gMASK]", again=True, calls=("<tool_call>",))
GRANITE: Final = optional_think(
    starts=("Here is my thought process:", "Here's my thought process:"),
    ends=("Here is my response:", "Here's my response:"),
    once=True,
)
HF: Final = ReasoningFormat(read_none, from_template=format_from_template)
HUNYUAN_A13B: Final = optional_think(
    "<answer>", answer=("<answer>", "</answer>"), calls=("<tool_calls>",)
)
HY_V3: Final = think_format(
    "reasoning_effort",
    switches=("reasoning_effort",),
    on=False,
    again=True,
    calls=("<tool_calls>", "<tool_call>"),
)
HY_V4: Final = think_format(
    "reasoning_effort",
    starts=("<think:opensource>", "<think>"),
    ends=("</think:opensource>", "</think>"),
    switches=("reasoning_effort",),
    again=True,
    calls=("<tool_calls:opensource>", "<tool_call:opensource>", "<tool_calls>", "<tool_call>"),
)
IDENTITY: Final = ReasoningFormat(read_none)
K2_HORIZON: Final = think_format(
    starts=("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
    ends=("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
    calls=("<ifm|tool_calls>",),
)
KIMI_K2: Final = think_format(KIMI_CALLS[0], calls=KIMI_CALLS, again=True)
MINICPM5: Final = replace(optional_think(calls=("<function name=",)), template_hints=())
MINICPMV: Final = replace(
    think_format(
        calls=CODER_CALLS,
        dropped=(
            "<|im_end|>",
            *(f"<{bar}reserved_{i}{bar}>" for i in range(12, 16) for bar in ("", "|")),
        ),
    ),
    template_hints=(),
)
MINIMAX_M2: Final = think_format(
    "<minimax:tool_call>", switches=(), again=True, calls=("<minimax:tool_call>",)
)
MINIMAX_M2_APPEND: Final = ReasoningFormat(read_appended, markers=("<think>",), ends=("</think>",))
MINIMAX_M3: Final = optional_think(
    starts=("<mm:think>",),
    ends=("</mm:think>",),
    switches=("thinking_mode",),
    begins=("enabled",),
    again=True,
    calls=("]<]minimax[>[<tool_call>",),
)
MISTRAL: Final = optional_think(
    starts=("[THINK]", "<think>"),
    ends=("[/THINK]", "</think>"),
    switches=(),
    again=True,
    calls=("[TOOL_CALLS]",),
)
OLMO3: Final = replace(think_format(switches=(), calls=("<function_calls>",)), template_hints=())
ON_BY_DEFAULT: Final = replace(think_format(calls=CODER_CALLS), template_hints=())
PLAMO3: Final = think_format(
    starts=("<|plamo:begin_think:plamo|>",),
    ends=("<|plamo:end_think:plamo|>",),
    again=True,
    calls=("<|plamo:begin_tool_requests:plamo|>",),
    dropped=("<|plamo:tag|>",),
)
POOLSIDE_V1: Final = replace(think_format(on=False, calls=("<tool_call>",)), template_hints=())
QWEN3: Final = replace(think_format(calls=CODER_CALLS), template_hints=())
SEED_OSS: Final = think_format(
    starts=("<seed:think>",), ends=("</seed:think>",), calls=("<seed:tool_call>",)
)
STEP3: Final = replace(
    think_format(switches=(), calls=("<｜tool_calls_begin｜>",)), template_hints=()
)
STEP3P5: Final = replace(think_format(switches=(), calls=CODER_CALLS), template_hints=())
THINK: Final = optional_think("enable_thinking", calls=CODER_CALLS)
