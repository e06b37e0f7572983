"""Tool calls: one, two at once, none if no tool fits, and the answer after the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from examples.demo_model.everyday import BOTH, Tool, everyday_tool, tool_of_words
from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import engine_facts, small_talk
from examples.demo_model.words import CITIES, COLOURS, WEEKDAYS, new_name, new_word

NO_TOOL: Final = "None of my tools can do that."
_POLITE: Final = (
    "{r}",
    "{r}.",
    "{R}.",
    "{R}.",
    "{R}",
    "Please {r}.",
    "Please {r}",
    "Can you {r}?",
    "Could you {r}?",
    "I want you to {r}.",
    "Would you {r}, please?",
)
_PLAIN: Final = ("{R}.", "{R}")
_QUESTION: Final = (
    "{R}?",
    "{R}?",
    "{R}?",
    "{R}?",
    "{r}?",
    "{r}",
    "Please tell me: {r}?",
    "Hello, {r}?",
)
_ASKING: Final = frozenset(
    (
        "what",
        "what's",
        "how",
        "is",
        "are",
        "will",
        "do",
        "does",
        "did",
        "when",
        "where",
        "which",
        "who",
        "can",
        "am",
    )
)
_SYSTEM: Final = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "Use the tools when they fit.",
    "You are an assistant with tools.",
)
_KINDS: Final = ("one", "one", "one", "two", "two", "two", "none", "none", "result")
_DONE: Final = ("ok", "done", "success")
_STATES: Final = (
    "sunny",
    "cloudy",
    "rainy",
    "windy",
    "open",
    "closed",
    "ready",
    "busy",
    "late",
    "full",
    "free",
    "sold out",
)


def make(draw: Draw, kind: str | None = None) -> Item:
    """Return one request with tools, or with the results of a call to summarize."""
    return together(draw, 1, kind)[0]


def together(draw: Draw, count: int, kind: str | None = None) -> list[Item]:
    """Return requests to the same tools, in conversations of their own."""
    tools = _different_tools(draw, draw.one((1, 1, 1, 2, 2, 3, 4)))
    system = draw.one(_SYSTEM)
    return [_item(draw, tools, system, kind or draw.one(_KINDS)) for _ in range(count)]


def _item(draw: Draw, tools: list[Tool], system: str, kind: str) -> Item:
    item = Item(
        "tools",
        tuple(tool.name for tool in tools),
        [],
        tools=[tool.schema for tool in tools],
        variant=kind,
    )
    if system:
        item.messages.append({"role": "system", "content": system})
    if kind == "none":
        question, item.answer = _unanswerable(draw, tools)
    else:
        question, item.calls = _request(
            draw, tools, kind == "two" or (kind == "result" and draw.chance(0.4))
        )
    item.messages.append({"role": "user", "content": question})
    if kind == "result":
        fields = {tool.name: tool.fields for tool in tools}
        _add_results(item, lambda name: _result(draw, fields[name]))
    elif kind == "two" and len(item.calls) == 1:
        item.variant = "one"
    item.thinking = draw.chance(0.7)
    return item


def _tool(draw: Draw) -> Tool:
    return everyday_tool(draw) if draw.chance(0.6) else tool_of_words(draw)


def _different_tools(draw: Draw, count: int) -> list[Tool]:
    tools: list[Tool] = []
    while len(tools) < count:
        tool = _tool(draw)
        if not any(tool.name == other.name or _words(tool) & _words(other) for other in tools):
            tools.append(tool)
    return tools


def _request(draw: Draw, tools: list[Tool], twice: bool) -> tuple[str, list[dict[str, Any]]]:
    """Return a request for one or two calls, and the calls."""
    first, *others = draw.some(tools, min(len(tools), 2))
    if twice and (not others or draw.chance(0.4)):
        wording, both = first.make_double_request(draw)
        if both[0] != both[1]:
            return _spoken(draw, wording), [
                {"name": first.name, "arguments": arguments} for arguments in both
            ]
    wording, (arguments,) = first.make_request(draw)
    calls = [{"name": first.name, "arguments": arguments}]
    if not twice or not others:
        return _spoken(draw, wording), calls
    more, (arguments,) = others[0].make_request(draw)
    calls.append({"name": others[0].name, "arguments": arguments})
    if _is_question(wording) != _is_question(more) or draw.chance(0.2):
        return f"{_ended(_spoken(draw, wording))} {_spoken(draw, more)}", calls
    return _spoken(draw, draw.one(BOTH).format(a=wording.rstrip("?"), b=more)), calls


def _spoken(draw: Draw, wording: str) -> str:
    """Return a request as a sentence."""
    patterns = _POLITE
    if _is_question(wording):
        patterns = _QUESTION
    elif wording.startswith(("I ", "we ")):
        patterns = _PLAIN
    wording = wording.rstrip("?")
    return draw.one(patterns).format(r=wording, R=wording[:1].upper() + wording[1:])


def _is_question(wording: str) -> bool:
    return wording.split()[0] in _ASKING


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def _unanswerable(draw: Draw, tools: list[Tool]) -> tuple[str, str]:
    """Return a question that no tool answers, and its answer."""
    if draw.chance(0.3):
        return _other_question(draw)
    missing = _tool(draw)
    while any(_words(missing) & _words(tool) for tool in tools):
        missing = _tool(draw)
    return _spoken(draw, missing.make_request(draw)[0]), NO_TOOL


def _words(tool: Tool) -> set[str]:
    return {word for topic in tool.topics for word in topic.split()}


def _other_question(draw: Draw) -> tuple[str, str]:
    """Return a question that is for the model and no tool, with its answer."""
    item = draw.one((small_talk, engine_facts)).make(draw)
    if item.variant == "world":
        return small_talk.world_question(draw), item.answer  # another, which no tool could answer
    return item.messages[0]["content"], item.answer


def _add_results(item: Item, make_result: Callable[[str], tuple[str, str]]) -> None:
    """Add results for an item's calls: `make_result` returns a tool's message and its summary."""
    made = [{"type": "function", "function": call} for call in item.calls]
    item.messages.append({"role": "assistant", "content": "", "tool_calls": made})
    results = [make_result(call["name"]) for call in item.calls]
    item.messages += [{"role": "tool", "content": message} for message, _ in results]
    item.calls = []
    item.answer = " ".join(answer for _, answer in results)


def _result(draw: Draw, fields: tuple[str, ...]) -> tuple[str, str]:
    """Return a tool's result and its summary."""
    kind = draw.number(0, 9)
    if kind == 0:
        return json.dumps({draw.one(("status", "result")): draw.one(_DONE)}), "Done."
    if kind == 1:
        fault = draw.one(
            ("not found", "no access", "too late", f"unknown {fields[0]}", f"no {fields[0]}")
        )
        return json.dumps({"error": fault}), f"The tool failed: {fault}."
    if kind == 2:
        first = draw.one((new_name(draw), str(draw.number(1, 99)), draw.one(_STATES)))
        wording = f"{first} {draw.one(_STATES)}"
        return wording, f"The tool says: {wording}."
    others = (
        new_word(draw),
        "sky",
        "owner",
        "place",
        "size",
        "level",
        "state",
        "wind_speed",
        "next_step",
    )
    names = draw.some(fields, min(len(fields), draw.number(1, 3)))
    names = list(dict.fromkeys([*names, draw.one(others), draw.one(others)]))[: draw.number(1, 4)]
    result = {name: _value(draw) for name in names}
    return json.dumps(result), _sentence(
        {name.replace("_", " "): value for name, value in result.items()}
    )


def _sentence(facts: Mapping[str, object]) -> str:
    """Return the summary of a tool's result."""
    parts = [f"the {name} is {value}" for name, value in facts.items()]
    text = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return f"{text[:1].upper()}{text[1:]}."


def _value(draw: Draw) -> str | int | float:
    kind = draw.number(0, 5)
    if kind <= 1:
        return draw.number(0, 999)
    if kind == 2:
        return draw.number(1, 999) / 10
    if kind == 3:
        return draw.one([*COLOURS, *WEEKDAYS, *CITIES, *_STATES])
    return draw.one(
        (
            new_name(draw),
            f"{draw.number(0, 23)}:{draw.number(0, 59):02}",
            f"{draw.number(1, 99)} {new_word(draw)}",
        )
    )
