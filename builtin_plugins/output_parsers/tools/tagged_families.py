"""The families that write calls between tags.

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

from builtin_plugins.output_parsers.contract import CallText, ToolFormat
from builtin_plugins.output_parsers.tools.tagged import TagSyntax, tag_format


def kimi_call_id(name: str, index: int) -> str:
    """Return a call id in Kimi K2's tag_format."""
    return f"functions.{name}:{index}"


def dsml(section: str, invoke: str, parameter: str, mark: str = "｜DSML｜") -> TagSyntax:
    """Return DeepSeek's markup: versions differ in tag names, other families in the mark."""
    return TagSyntax(
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
    """Return DeepSeek's format; each tag contains one special token."""
    return tag_format(
        dsml(section, invoke, parameter),
        markers=("｜DSML｜",),
        template_hints=("｜DSML｜", section),
    )


def invokes(begin: str, close: str, prefix: str = "", **given: Any) -> TagSyntax:
    """Return the syntax `<invoke name="..."><parameter name="...">` between tags."""
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
    return TagSyntax(**{**stated, **given})


def functions(tag: str, *, lines: bool = False) -> TagSyntax:
    """Return the syntax `<function=name><parameter=name>value</parameter></function>`."""
    return TagSyntax(
        section=(f"<{tag}>", f"</{tag}>"),
        call=("<function=",),
        named=(">",),
        key="<parameter=",
        key_ends=(">",),
        value_end="</parameter>",
        end=("</function>",),
        lines=lines,
    )


def pairs(prefix: str = "", suffix: str = "", **given: Any) -> TagSyntax:
    """Return the syntax `<tool_call>name<arg_key>k</arg_key><arg_value>v</arg_value>`."""
    tags = TagSyntax(
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
    """Return the format between DeepSeek's special tokens; `before` and `after` wrap arguments."""
    begin = "<｜tool▁call▁begin｜>"
    close = "<｜tool▁call▁end｜>"
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    read = tag_format(
        TagSyntax(section=section, call=(begin, *call), named=named, end=(*end, close)),
        template_hints=(begin, *call, *named),
    )
    return replace(
        read, writes=CallText(f"{begin}{before}", f"{after}{close}", after[:1], *section)
    )


KIMI_TAGS: Final = TagSyntax(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=("<|tool_call_begin|>",),
    named=("<|tool_call_argument_begin|>",),
    end=("<|tool_call_end|>",),
    ids=True,
)
PLAMO_TAGS: Final = TagSyntax(
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
MINICPM_TAGS: Final = TagSyntax(
    call=("<function name=",),
    named=(),
    key="<param name=",
    key_ends=(">", "><![CDATA["),
    value_end="</param>",
    end=("</function>",),
    quoted=True,
    # with the byte-level sign for a space, and without a space
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
GIGACHAT35: Final = tag_format(
    dsml("tool_calls", "invoke", "parameter", "｜GCML｜"),
    markers=(
        "<｜GCML｜tool_calls>",
        "</｜GCML｜tool_calls>",
        "<｜GCML｜invoke",
        "</｜GCML｜invoke>",
        "<｜GCML｜parameter",
        "</｜GCML｜parameter>",
    ),
    template_hints=("｜GCML｜",),
)
DOTS: Final = tag_format(
    replace(invokes("<dots_function_call>", "</dots_function_call>"), objects=True)
)
GLM45: Final = tag_format(pairs())
HY_V3: Final = tag_format(pairs(named=("<tool_sep>",), section=("<tool_calls>", "</tool_calls>")))
HY_V4: Final = tag_format(
    pairs(section=("<tool_calls>", "</tool_calls>"), literal=False),
    pairs(
        suffix=":opensource",
        section=("<tool_calls:opensource>", "</tool_calls:opensource>"),
        literal=False,
    ),
)
K2_HORIZON: Final = tag_format(
    pairs(
        "ifm|",
        section=("<ifm|tool_calls>", "</ifm|tool_calls>"),
        type=("<ifm|arg_type>", "</ifm|arg_type>"),
        objects=True,
    )
)
KIMI_K2: Final = tag_format(KIMI_TAGS, call_id=kimi_call_id)
MINICPM5: Final = tag_format(MINICPM_TAGS)
MINIMAX_M2: Final = tag_format(invokes("<minimax:tool_call>", "</minimax:tool_call>"))
PLAMO3: Final = tag_format(PLAMO_TAGS)
MIMO: Final = tag_format(functions("tool_call"))
QWEN3_CODER: Final = tag_format(functions("tool_call", lines=True))
SEED_OSS: Final = tag_format(functions("seed:tool_call", lines=True))
STEP3: Final = tag_format(
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
