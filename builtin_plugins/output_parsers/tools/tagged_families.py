"""The families that write calls between tags, each by what stands where.

Formats: the chat templates of deepseek-ai/DeepSeek-V3-0324 and DeepSeek-V3.1 and the encoding
published with DeepSeek-V3.2, V4 and V4.1 (DSML), moonshotai/Kimi-K2-Instruct,
Qwen/Qwen3-Coder-30B-A3B-Instruct, ai-sage/GigaChat3.5 (GCML), ByteDance-Seed/Seed-OSS-36B-Instruct,
stepfun-ai/step3 and Step-3.5-Flash, XiaomiMiMo/MiMo-V2-Flash, MiniMaxAI/MiniMax-M2,
rednote-hilab/dots, openbmb/MiniCPM5, zai-org/GLM-4.5 and GLM-4.7, poolside's Laguna (v1),
inclusionAI/Ling-3, tencent/Hy3 and Hy4, LLM360/K2-Horizon and pfnet/plamo-3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from builtin_plugins.output_parsers.tools.tagged import Tags, form
from core.api import CallText, ToolFormat


def call_id_of_kimi(name: str, index: int) -> str:
    """Return an id as Kimi K2 writes them."""
    return f"functions.{name}:{index}"


def dsml(section: str, invoke: str, parameter: str, mark: str = "｜DSML｜") -> Tags:
    """Return DeepSeek's markup, whose versions differ in the names of its tags, and others' in the
    mark in all of them.
    """
    return Tags(
        section=(f"<{mark}{section}>", f"</{mark}{section}>"),
        call=(f'<{mark}{invoke} name="',),
        named=('">',),
        key=f'<{mark}{parameter} name="',
        key_ends=('" string="true">', '" string="false">', '">'),
        value_end=f"</{mark}{parameter}>",
        end=(f"</{mark}{invoke}>",),
        literal=True,
        exact=True,
    )


def deepseek_dsml(section: str, invoke: str, parameter: str) -> ToolFormat:
    """Return DeepSeek's format; one special token stands in each tag."""
    return form(
        dsml(section, invoke, parameter), markers=("｜DSML｜",), signs=("｜DSML｜", section)
    )


def invokes(begin: str, close: str, prefix: str = "", **given: Any) -> Tags:
    """Return calls as `<invoke name="..."><parameter name="...">` between tags."""
    stated: dict[str, Any] = {
        "section": (begin, close),
        "call": (f"<{prefix}invoke name=",),
        "named": (),
        "key": f"<{prefix}parameter name=",
        "key_ends": (">",),
        "value_end": f"</{prefix}parameter>",
        "end": (f"</{prefix}invoke>",),
        "quoted": True,
    }
    return Tags(**{**stated, **given})


def functions(tag: str, *, lines: bool = False) -> Tags:
    """Return calls as `<function=name><parameter=name>value</parameter></function>` between tags."""
    return Tags(
        section=(f"<{tag}>", f"</{tag}>"),
        call=("<function=",),
        named=(">",),
        key="<parameter=",
        key_ends=(">",),
        value_end="</parameter>",
        end=("</function>",),
        lines=lines,
    )


def pairs(prefix: str = "", suffix: str = "", **given: Any) -> Tags:
    """Return calls as
    `<tool_call>name<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>`.
    """
    tags = Tags(
        call=(f"<{prefix}tool_call{suffix}>",),
        named=(),
        key=f"<{prefix}arg_key{suffix}>",
        key_ends=(f"</{prefix}arg_key{suffix}>",),
        value=(f"<{prefix}arg_value{suffix}>",),
        value_end=f"</{prefix}arg_value{suffix}>",
        end=(f"</{prefix}tool_call{suffix}>",),
        literal=True,
    )
    return replace(tags, **given)


def deepseek(
    named: tuple[str, ...],
    before: str,
    after: str = "",
    call: tuple[str, ...] = (),
    end: tuple[str, ...] = (),
) -> ToolFormat:
    """Return calls between DeepSeek's special tokens; `before` and `after` are what is written
    around arguments.
    """
    begin, close = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    read = form(
        Tags(section=section, call=(begin, *call), named=named, end=(*end, close)),
        signs=(begin, *call, *named),
    )
    return replace(
        read, writes=CallText(f"{begin}{before}", f"{after}{close}", after[:1], *section)
    )


KIMI_TAGS: Final = Tags(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=("<|tool_call_begin|>",),
    named=("<|tool_call_argument_begin|>",),
    end=("<|tool_call_end|>",),
    ids=True,
)
PLAMO_TAGS: Final = Tags(
    section=("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
    call=("<|plamo:begin_tool_request:plamo|>", "<|plamo:begin_tool_name:plamo|>"),
    named=(
        "<|plamo:end_tool_name:plamo|>",
        "<|plamo:begin_tool_arguments:plamo|>",
        "<|plamo:constrain|>",
        "json",
        "<|plamo:msg|>",
    ),
    end=("<|plamo:end_tool_arguments:plamo|>", "<|plamo:end_tool_request:plamo|>"),
    optional=("<|plamo:begin_tool_request:plamo|>", "<|plamo:constrain|>", "json", "<|plamo:msg|>"),
    between=("<|plamo:tag|>",),
)
MINICPM_TAGS: Final = Tags(
    call=("<function name=",),
    named=(),
    key="<param name=",
    key_ends=(">", "><![CDATA["),
    value_end="</param>",
    end=("</function>",),
    quoted=True,
    # byte-level tokenizers' sign for a space, and none at all
    spelled={
        tag: tuple(tag.replace(" ", space) for space in ("\u0120", ""))
        for tag in ("<function name=", "<param name=")
    },
)

DEEPSEEK_V3: Final = deepseek(
    ("```json",),
    "function<｜tool▁sep｜>{name}\n```json\n",
    "\n```",
    call=("function", "<｜tool▁sep｜>"),
    end=("```",),
)
DEEPSEEK_V31: Final = deepseek(("<｜tool▁sep｜>",), "{name}<｜tool▁sep｜>")
DEEPSEEK_V32: Final = deepseek_dsml("function_calls", "invoke", "parameter")
DEEPSEEK_V4: Final = deepseek_dsml("tool_calls", "invoke", "parameter")
DEEPSEEK_V41: Final = deepseek_dsml(" calls", " invoke", " parameter")
GIGACHAT35: Final = form(
    dsml("tool_calls", "invoke", "parameter", "｜GCML｜"),
    markers=(
        "<｜GCML｜tool_calls>",
        "</｜GCML｜tool_calls>",
        "<｜GCML｜invoke",
        "</｜GCML｜invoke>",
        "<｜GCML｜parameter",
        "</｜GCML｜parameter>",
    ),
    signs=("｜GCML｜",),
)
DOTS: Final = form(replace(invokes("<dots_function_call>", "</dots_function_call>"), objects=True))
GLM45: Final = form(pairs())
HY_V3: Final = form(pairs(named=("<tool_sep>",), section=("<tool_calls>", "</tool_calls>")))
HY_V4: Final = form(
    pairs(section=("<tool_calls>", "</tool_calls>"), literal=False),
    pairs(
        suffix=":opensource",
        section=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        literal=False,
    ),
)
K2_HORIZON: Final = form(
    pairs(
        "ifm|",
        section=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        type=("<ifm|arg_type>", "</ifm|arg_type>"),
        objects=True,
    )
)
KIMI_K2: Final = form(KIMI_TAGS, call_id=call_id_of_kimi)
MINICPM5: Final = form(MINICPM_TAGS)
MINIMAX_M2: Final = form(invokes("<minimax:tool_call>", "</minimax:tool_call>"))
PLAMO3: Final = form(PLAMO_TAGS)
MIMO: Final = form(functions("tool_call"))
QWEN3_CODER: Final = form(functions("tool_call", lines=True))
SEED_OSS: Final = form(functions("seed:tool_call", lines=True))
STEP3: Final = form(
    invokes(
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        call=("<｜tool_call_begin｜>", "function", "<｜tool_sep｜>", "<steptml:invoke name="),
        key="<steptml:parameter name=",
        value_end="</steptml:parameter>",
        end=("</steptml:invoke>", "<｜tool_call_end｜>"),
        optional=("function", "<｜tool_sep｜>"),
        between=("<｜tool_sep｜>",),
    )
)
