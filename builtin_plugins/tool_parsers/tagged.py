"""Calls whose name, and often whose arguments, stand between tags.

Formats: the chat templates of deepseek-ai/DeepSeek-V3-0324 and DeepSeek-V3.1 and the encoding published with
DeepSeek-V3.2, V4 and V4.1 (DSML), moonshotai/Kimi-K2-Instruct, Qwen/Qwen3-Coder-30B-A3B-Instruct, ai-sage/GigaChat3.5
(GCML), ByteDance-Seed/Seed-OSS-36B-Instruct, stepfun-ai/step3 and Step-3.5-Flash, XiaomiMiMo/MiMo-V2-Flash,
MiniMaxAI/MiniMax-M2, rednote-hilab/dots, openbmb/MiniCPM5, zai-org/GLM-4.5 and GLM-4.7, poolside's Laguna (v1),
inclusionAI/Ling-3, tencent/Hy3 and Hy4, LLM360/K2-Horizon and pfnet/plamo-3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from builtin_plugins.tool_parsers.json_calls import named
from core.api import Broken, CallText, ParseRequest, Reading, Scan, ToolFormat, read_json, typed_arguments


@dataclass(frozen=True, slots=True)
class Tags:
    """What stands where. Where several texts follow each other there may be white space between them."""

    call: tuple[str, ...]
    """In front of a name."""
    named: tuple[str, ...]
    """Behind a name."""
    end: tuple[str, ...]
    """Behind the arguments."""
    section: tuple[str, str] = ("", "")
    """Around all calls, where a family has it; read without it as well."""
    key: str = ""
    """In front of an argument's name; "" where the arguments are one JSON object."""
    key_ends: tuple[str, ...] = ()
    """Behind an argument's name: one of these."""
    value: tuple[str, ...] = ()
    """In front of an argument's value, where more stands there."""
    type: tuple[str, str] = ("", "")
    """Around an argument's type, where it may be written in front of the value."""
    value_end: str = ""
    lines: bool = False
    """Values stand on lines of their own: the line breaks around them are layout."""
    literal: bool = False
    """Values other than texts are written as JSON: that they are where the tool's schema says nothing, too."""
    exact: bool = False
    """White space at the end of a value is its own, also where the next argument's begin ends it."""
    objects: bool = False
    """A call may also be one JSON object, its name in it."""
    ids: bool = False
    """A name is written as part of the call's id: `functions.name:0`."""
    quoted: bool = False
    """Names stand between quotes, of either kind or none, up to a `>`."""
    spelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """How the first text of a call, or the key, is written as well."""
    optional: tuple[str, ...] = ()
    """Which texts in front of a name or behind it may be missing."""
    between: tuple[str, ...] = ()
    """What may stand behind calls as ends do."""

    @property
    def calls(self) -> tuple[str, ...]:
        """What begins a call."""
        return self.call[0], *self.spelled.get(self.call[0], ())

    @property
    def keys(self) -> tuple[str, ...]:
        """What begins an argument, if its name does."""
        return (self.key, *self.spelled.get(self.key, ())) if self.key else ()

    @property
    def value_ends(self) -> tuple[str, ...]:
        """What ends a value: its own end, or where models forget that, the next argument's begin or the call's end."""
        return self.value_end, *self.keys, self.end[0]


def read(spellings: Sequence[Tags], scan: Scan, request: ParseRequest) -> Reading:
    """Read calls, in a section or not, text around."""
    starts = {text: tags for tags in spellings for text in (tags.section[0], *tags.calls) if text}
    while start := (yield from scan.text(*starts)):
        tags = starts[start]
        with scan.attempt():
            opened = yield from object_begins(tags, scan)
            if not opened and start not in tags.calls:
                yield from (scan.maybe if tags.call[0] in tags.optional else scan.expect)(*tags.calls)
            if not opened:
                yield from all_of(scan, tags.call[1:], tags.optional)
                opened = yield from object_begins(tags, scan)
            if opened:
                named(scan, (yield from scan.object("{")))
                yield from scan.close_call(*tags.end)
                continue
            written = yield from read_name(tags, scan)
            name, call_id = name_and_id(written) if tags.ids else (written, None)
            arguments = yield from read_arguments(tags, scan, request.parameters(name))
            if tags.ids and written.isdecimal():
                name, call_id = only_tool_for(arguments, request), written
            scan.call(name, arguments, call_id)


def object_begins(tags: Tags, scan: Scan) -> Reading:
    """Skip the first bracket of a call that is one object; say whether it is there."""
    return bool(tags.objects and (yield from scan.maybe("{")))


def all_of(scan: Scan, texts: Iterable[str], optional: Sequence[str] = ()) -> Reading:
    """Skip some texts, one after the other, of which some may be missing."""
    for text in texts:
        yield from (scan.maybe if text in optional else scan.expect)(text)


def read_name(tags: Tags, scan: Scan) -> Reading:
    """Return the name that follows, read up to and over what stands behind it."""
    if tags.quoted:
        yield from scan.maybe('"', "'")
    name = yield from scan.word()
    if tags.quoted:
        yield from up_to(scan, ">")
    yield from all_of(scan, tags.named, tags.optional)
    return name


def up_to(scan: Scan, *ends: str) -> Reading:
    """Return the text up to an end, and the end. Raises `Broken` where another tag begins first."""
    text, end = yield from scan.take(*ends, "<")
    if end == "<":
        raise Broken
    return text, end


def read_arguments(tags: Tags, scan: Scan, schema: Mapping[str, Any]) -> Reading:
    """Return the arguments, read up to and over what ends the call."""
    arguments: dict[str, Any] = {}
    while found := (yield from scan.maybe(*tags.keys, "{")):
        if found == "{":
            arguments = yield from scan.object("{")
            break
        key, key_end = yield from up_to(scan, *tags.key_ends, *tags.value)
        if key_end in tags.value:
            scan.recovered(f"the end of an argument's name is missing before {key_end}")
            scan.unread(key_end)
        key = key.strip().strip("\"'") if tags.quoted else key.strip()
        if tags.type[0] and (yield from scan.maybe(tags.type[0])):
            stated, _ = yield from scan.take(tags.type[1])
            key_end = f'="{str(stated == "string").lower()}">'
        yield from all_of(scan, tags.value)
        text = yield from read_value(tags, scan, key_end)
        if key_end.endswith('="true">'):  # the tag says that the value is a text; the schema may know better
            arguments[key] = text
        elif key_end.endswith('="false">'):
            arguments |= typed_arguments({key: unquoted(text)}, schema)
        else:
            arguments |= typed_arguments({key: text}, schema, literal=tags.literal)
    ended = ""
    for end in tags.end:
        ended = (yield from scan.close_call(end, before=[text for text in tags.section[1:] if text])) or ended
    if not (arguments or found or ended):  # the output ends where arguments may have been to come
        raise Broken
    return arguments


def unquoted(text: str) -> str:
    """Return the text that a value is whose tag says that it is JSON; JSON that is no text stays as it is written."""
    try:
        value = read_json(text) if text.strip()[:1] == '"' else text
    except Broken:
        return text
    return value if isinstance(value, str) else text


def read_value(tags: Tags, scan: Scan, key_end: str) -> Reading:
    """Return an argument's value."""
    if key_end.endswith("[CDATA["):
        text, _ = yield from scan.take("]]>" + tags.value_end)
        return text
    text, end = yield from scan.take(*tags.value_ends)
    if end != tags.value_end:
        scan.recovered(f"the end of a value is missing before {end}")
        scan.unread(end)
        text = text if tags.exact and end in tags.keys else text.rstrip()
    return text.removeprefix("\n").removesuffix("\n") if tags.lines else text


def name_and_id(written: str) -> tuple[str, str | None]:
    """Split `functions.name:0`; what is written otherwise is a name alone."""
    name, colon, index = written.rpartition(":")
    if not (colon and index.isdecimal()):
        return written.removeprefix("functions."), None
    return name.removeprefix("functions."), written


def only_tool_for(arguments: Mapping[str, Any], request: ParseRequest) -> str:
    """Return the tool that takes such arguments, of a call that gives a count for its name. Raises `Broken` if unsure."""
    tools = [str(tool.get("function", tool).get("name")) for tool in request.tools]
    fitting = [name for name in tools if arguments.keys() <= request.parameters(name).get("properties", {}).keys()]
    if len(fitting) != 1:
        raise Broken
    return fitting[0]


def call_id_of_kimi(name: str, index: int) -> str:
    """Return an id as Kimi K2 writes them."""
    return f"functions.{name}:{index}"


def dsml(section: str, invoke: str, parameter: str, mark: str = "｜DSML｜") -> Tags:
    """Return DeepSeek's markup, whose versions differ in the names of its tags, and others' in the mark in all of them."""
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
    return form(dsml(section, invoke, parameter), markers=("｜DSML｜",), signs=("｜DSML｜", section))


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
    """Return calls as `<tool_call>name<arg_key>...</arg_key><arg_value>...</arg_value></tool_call>`."""
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


def form(*spellings: Tags, **given: Any) -> ToolFormat:
    """Return a format, perhaps with several spellings; which texts are special tokens is the tokenizer's to say."""
    marks = [text for tags in spellings for text in texts_of(tags) if text[:1] == "<" and text[-1:] == ">"]
    tags = spellings[0]
    signs = tuple(filter(None, (tags.section[0], tags.call[0], tags.key)))
    stated = {"markers": tuple(dict.fromkeys(marks)), "call_ends": ends_of(*spellings), "signs": signs, **given}
    return ToolFormat(partial(read, spellings), **stated)


def texts_of(tags: Tags) -> tuple[str, ...]:
    """Return all that tags are written with."""
    return (*tags.section, *tags.call, *tags.named, *tags.end, tags.key, *tags.value, tags.value_end, *tags.type)


def ends_of(*spellings: Tags) -> tuple[str, ...]:
    """Return what ends a call, or all of them."""
    return tuple(text for tags in spellings for text in (*tags.end, tags.section[1], *tags.between) if text)


def deepseek(
    named: tuple[str, ...], before: str, after: str = "", call: tuple[str, ...] = (), end: tuple[str, ...] = ()
) -> ToolFormat:
    """Return calls between DeepSeek's special tokens; `before` and `after` are what is written around arguments."""
    begin, close = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    section = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
    read = form(
        Tags(section=section, call=(begin, *call), named=named, end=(*end, close)), signs=(begin, *call, *named)
    )
    return replace(read, writes=CallText(f"{begin}{before}", f"{after}{close}", after[:1], *section))


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
        tag: tuple(tag.replace(" ", space) for space in ("\u0120", "")) for tag in ("<function name=", "<param name=")
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
    pairs(suffix=":opensource", section=("<tool_calls:opensource>", "</tool_calls:opensource>"), literal=False),
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
