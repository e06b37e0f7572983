"""Writers of the call syntax of every family, after their published templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Arguments = Mapping[str, Any]
Call = tuple[str, Arguments]


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """One family's call syntax."""

    one: Callable[[str, Arguments], str]
    around: Callable[[Sequence[str]], str] = "".join
    broken: Callable[[str], str] = lambda text: text.replace(":", "", 1)
    """Returns a broken form of a call."""
    by_line: bool = False
    """A call starts a line."""

    def write(self, *calls: Call) -> str:
        return self.around([self.one(name, arguments) for name, arguments in calls])


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    """Return a value as formats without string quotes write it."""
    return value if isinstance(value, str) else dumps(value)


def as_json(name: str, arguments: Arguments, key: str = "arguments") -> str:
    return dumps({"name": name, key: arguments})


def between(start: str, end: str = "", separator: str = "") -> Callable[[Sequence[str]], str]:
    return lambda calls: f"{start}{separator.join(calls)}{end}"


def each(start: str, end: str, separator: str = "\n") -> Callable[[Sequence[str]], str]:
    return lambda calls: separator.join(f"{start}{call}{end}" for call in calls)


def tag_writer(
    call: str, key: str, value: str, *, show: Callable[[Any], str] = plain
) -> Callable[[str, Arguments], str]:
    """Return the writer of calls between tags, from format strings of call, key and value."""
    return lambda name, arguments: call.format(
        name=name,
        arguments="".join(key.format(k=k) + value.format(v=show(v)) for k, v in arguments.items()),
    )


def unquoted(text: str) -> str:
    """Return a call with an unclosed name."""
    return text.replace('">', '"', 1)


def unopened(text: str) -> str:
    """Return a call without the start of its arguments."""
    return text.replace("{", "", 1)


def dsml(section: str, invoke: str, parameter: str, mark: str = "｜DSML｜") -> CallSyntax:
    def one(name: str, arguments: Arguments) -> str:
        lines = [
            f'<{mark}{parameter} name="{k}" '
            f'string="{str(isinstance(v, str)).lower()}">{plain(v)}</{mark}{parameter}>\n'
            for k, v in arguments.items()
        ]
        return f'<{mark}{invoke} name="{name}">\n{"".join(lines)}</{mark}{invoke}>\n'

    return CallSyntax(one, between(f"<{mark}{section}>\n", f"</{mark}{section}>"), unquoted)


def pythonic(name: str, arguments: Arguments) -> str:
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def gemma(quote: str, start: str, end: str) -> Callable[[str, Arguments], str]:
    def show(value: Any) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, Mapping):
            return "{" + ",".join(f"{k}:{show(v)}" for k, v in value.items()) + "}"
        return f"[{','.join(map(show, value))}]" if isinstance(value, list) else dumps(value)

    return lambda name, arguments: f"{start}call:{name}{show(arguments)}{end}"


GLM = CallSyntax(
    tag_writer(
        "<tool_call>{name}\n{arguments}</tool_call>",
        "<arg_key>{k}</arg_key>\n",
        "<arg_value>{v}</arg_value>\n",
    ),
    "\n".join,
    lambda text: text.replace("<arg_value>", "", 1),
)
QWEN_CODER = CallSyntax(
    tag_writer(
        "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
        "<parameter={k}>\n",
        "{v}\n</parameter>\n",
    ),
    "\n".join,
    lambda text: text.replace("weather>", "weather", 1),
)
PYTHONIC = CallSyntax(
    pythonic, between("[", "]", ", "), lambda text: text.replace("=", "", 1), by_line=True
)
HERMES = CallSyntax(
    lambda name, args: f"<tool_call>\n{as_json(name, args)}\n</tool_call>", "\n".join
)
MUSE = CallSyntax(
    tag_writer(
        "<|start|>assistant to={name}<|message|><atem:function_calls>\n"
        '<atem:invoke name="{name}">\n{arguments}</atem:invoke>\n</atem:function_calls><|eom|>',
        '<atem:parameter name="{k}">',
        "{v}</atem:parameter>\n",
    ),
    broken=unquoted,
)
LLAMA = CallSyntax(lambda name, args: as_json(name, args, "parameters"), "; ".join)
COHERE = CallSyntax(
    lambda name, args: dumps({"tool_call_id": "0", "tool_name": name, "parameters": args}),
    between("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>", ",\n    "),
)
LIST_OF_JSON = CallSyntax(as_json, between("<tool_calls>[\n", "\n]</tool_calls>", ",\n"))


def elements(name: str, arguments: Arguments) -> str:
    """Return a call as MiniMax M3's nested elements."""
    mark = "]<]minimax[>["

    def show(key: str, value: Any) -> str:
        inner = plain(value)
        if isinstance(value, Mapping) and value:
            inner = "".join(show(k, v) for k, v in value.items())
        elif isinstance(value, list) and value:
            inner = "".join(show("item", v) for v in value)
        return f"{mark}<{key}>{inner}{mark}</{key}>"

    inner = "".join(show(k, v) for k, v in arguments.items())
    return f'{mark}<invoke name="{name}">{inner}{mark}</invoke>\n'


def kimi_k3(name: str, arguments: Arguments) -> str:
    kinds = {
        str: "string",
        dict: "object",
        list: "array",
        bool: "boolean",
        int: "integer",
        float: "number",
    }
    return (
        f'<|open|>call tool="{name}" index="1"<|sep|>'
        + "".join(
            f'<|open|>argument key="{k}" '
            f'type="{kinds[type(v)]}"<|sep|>{plain(v)}<|close|>argument<|sep|>'
            for k, v in arguments.items()
        )
        + "<|close|>call<|sep|>"
    )


DESCRIBED: Mapping[str, Any] = {
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close": "</tool_call>",
            "content": "json",
            "transform": {"function": "{content}"},
        }
    }
}
"""Response template of a checkpoint, for the format `hf`."""
SYNTAXES: Mapping[str, CallSyntax] = {
    "apertus": CallSyntax(
        lambda name, args: dumps({name: args}),
        between("<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    ),
    "cohere_command3": COHERE,
    "cohere_command4": COHERE,
    "deepseek_v3": CallSyntax(
        lambda name, args: (
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{dumps(args)}\n```<｜tool▁"
            f"call▁end｜>"
        ),
        between("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "\n"),
        unopened,
    ),
    "deepseek_v31": CallSyntax(
        lambda name, args: (
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{dumps(args)}<｜tool▁call▁end｜>"
        ),
        between("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
        unopened,
    ),
    "deepseek_v32": dsml("function_calls", "invoke", "parameter"),
    "deepseek_v4": dsml("tool_calls", "invoke", "parameter"),
    "deepseek_v41": dsml(" calls", " invoke", " parameter"),
    "dots": CallSyntax(
        tag_writer(
            '<invoke name="{name}">\n{arguments}</invoke>\n',
            '<parameter name="{k}">',
            "{v}</parameter>\n",
        ),
        between("<dots_function_call>\n", "</dots_function_call>"),
        unquoted,
    ),
    "ernie45": HERMES,
    "functiongemma": CallSyntax(
        gemma("<escape>", "<start_function_call>", "<end_function_call>"),
        broken=lambda text: text.replace("{", "", 1),
    ),
    "gemma4": CallSyntax(
        gemma('<|"|>', "<|tool_call>", "<tool_call|>"),
        broken=lambda text: text.replace("call:", "", 1),
    ),
    "gigachat3": CallSyntax(as_json, each("<|function_call|>", "")),
    "gigachat35": dsml("tool_calls", "invoke", "parameter", "｜GCML｜"),
    "glm45": GLM,
    "glm47": CallSyntax(
        tag_writer(
            "<tool_call>{name}{arguments}</tool_call>",
            "<arg_key>{k}</arg_key>",
            "<arg_value>{v}</arg_value>",
        ),
        broken=GLM.broken,
    ),
    "granite": CallSyntax(as_json, between("<|tool_call|>[", "]", ", ")),
    "granite-20b-fc": CallSyntax(as_json, each("<function_call> ", "")),
    "granite4": HERMES,
    "hermes": HERMES,
    "hf": HERMES,
    "hunyuan_a13b": LIST_OF_JSON,
    "hy_v3": CallSyntax(
        tag_writer(
            "<tool_call>{name}<tool_sep>\n{arguments}</tool_call>\n",
            "<arg_key>{k}</arg_key>\n",
            "<arg_value>{v}</arg_value>\n",
        ),
        between("<tool_calls>\n", "</tool_calls>"),
        GLM.broken,
    ),
    "hy_v4": CallSyntax(GLM.one, between("<tool_calls>\n", "</tool_calls>", "\n"), GLM.broken),
    "inkling": CallSyntax(
        lambda name, args: (
            f"<|message_model|>{name}<|content_invoke_tool_json|>{as_json(name, args, 'args')}<"
            f"|end_message|>"
        ),
    ),
    "internlm": CallSyntax(
        lambda name, args: as_json(name, args, "parameters"),
        each("<|action_start|><|plugin|>\n", "<|action_end|>"),
    ),
    "jamba": LIST_OF_JSON,
    "k2_horizon": CallSyntax(
        tag_writer(
            "<ifm|tool_call>{name}{arguments}</ifm|tool_call>",
            "<ifm|arg_key>{k}</ifm|arg_key>",
            "<ifm|arg_value>{v}</ifm|arg_value>",
        ),
        between("<ifm|tool_calls>", "</ifm|tool_calls>"),
        lambda text: text.replace("<ifm|arg_value>", "", 1),
    ),
    "kimi_k2": CallSyntax(
        lambda name, args: (
            f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{dumps(args)}<|t"
            f"ool_call_end|>"
        ),
        between("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        unopened,
    ),
    "kimi_k3": CallSyntax(
        kimi_k3,
        between("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
        lambda text: text.replace('tool="', '"', 1),
    ),
    "lfm2": CallSyntax(
        pythonic, between("<|tool_call_start|>[", "]<|tool_call_end|>", ", "), PYTHONIC.broken
    ),
    "ling3": GLM,
    "llama3_json": LLAMA,
    "llama4_json": LLAMA,
    "llama4_pythonic": CallSyntax(
        pythonic, between("<|python_start|>[", "]<|python_end|>", ", "), PYTHONIC.broken
    ),
    "longcat": CallSyntax(as_json, each("<longcat_tool_call>", "</longcat_tool_call>")),
    "mimo": CallSyntax(
        tag_writer(
            "<tool_call>\n<function={name}>\n{arguments}</function>\n</tool_call>",
            "<parameter={k}>",
            "{v}</parameter>\n",
        ),
        "\n".join,
        QWEN_CODER.broken,
    ),
    "minicpm5": CallSyntax(
        tag_writer(
            '<function name="{name}">{arguments}</function>', '<param name="{k}">', "{v}</param>"
        ),
        broken=unquoted,
    ),
    "minimax": CallSyntax(as_json, between("<tool_calls>\n", "\n</tool_calls>", "\n")),
    "minimax_m2": CallSyntax(
        tag_writer(
            '<invoke name="{name}">\n{arguments}</invoke>\n',
            '<parameter name="{k}">',
            "{v}</parameter>\n",
        ),
        between("<minimax:tool_call>\n", "</minimax:tool_call>"),
        unquoted,
    ),
    "minimax_m3": CallSyntax(
        elements,
        between("]<]minimax[>[<tool_call>\n", "]<]minimax[>[</tool_call>"),
        lambda text: text.replace("</city>", "", 1),
    ),
    "mistral": CallSyntax(lambda name, args: f"[TOOL_CALLS]{name}[ARGS]{dumps(args)}"),
    "olmo3": CallSyntax(
        pythonic, between("<function_calls>", "</function_calls>", "\n"), PYTHONIC.broken
    ),
    "muse": MUSE,
    "muse_glimmer": MUSE,
    "musespark1x": MUSE,
    "openai": CallSyntax(
        lambda name, args: (
            f"<|start|>assistant<|channel|>commentary to=functions.{name} "
            f"<|constrain|>json<|message|>{dumps(args)}"
            "<|call|>"
        ),
    ),
    "phi4_mini_json": CallSyntax(as_json, between("functools[", "]", ", ")),
    "plamo3": CallSyntax(
        lambda name, args: (
            "<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>"
            f"{name}<|plamo:end_tool_name:plamo|><|plamo:begin_tool_arguments:plamo|><|plamo:co"
            f"nstrain|>json"
            f"<|plamo:msg|>{dumps(args)}<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_requ"
            f"est:plamo|>"
        ),
        between("<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>"),
        unopened,
    ),
    "poolside_v1": GLM,
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN_CODER,
    "qwen3_json": HERMES,
    "qwen3_xml": QWEN_CODER,
    "seed_oss": CallSyntax(
        tag_writer(
            "<function={name}>\n{arguments}</function>\n", "<parameter={k}>", "{v}</parameter>\n"
        ),
        each("<seed:tool_call>\n", "</seed:tool_call>"),
        QWEN_CODER.broken,
    ),
    "step3": CallSyntax(
        tag_writer(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">'
            "{arguments}</steptml:invoke><｜tool_call_end｜>",
            '<steptml:parameter name="{k}">',
            "{v}</steptml:parameter>",
        ),
        between("<｜tool_calls_begin｜>\n", "\n<｜tool_calls_end｜>", "\n"),
        unquoted,
    ),
    "step3p5": QWEN_CODER,
    "step5": QWEN_CODER,
    "xlam": CallSyntax(as_json, between("[", "]", ", ")),
}
