"""Calls of everyday tools, asked for by questions and beside tools made from words, with results of several fields."""

from __future__ import annotations

import json
from typing import Any, Final

from examples.demo_model.everyday import Tool, everyday_tool, tool_of_words
from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks.tools import (
    BOTH,
    NO_TOOL,
    POLITE,
    SYSTEM,
    add_results,
    other_question,
    outcome,
    sentence,
)
from examples.demo_model.words import CITIES, COLOURS, WEEKDAYS, new_name, new_word

_PLAIN: Final = ("{R}.", "{R}")
_QUESTION: Final = ("{R}?", "{R}?", "{R}?", "{R}?", "{r}?", "{r}", "Please tell me: {r}?", "Hello, {r}?")
_ASKING: Final = {
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
}
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
    """Return one request with the tools at hand, or the results of a call to be told."""
    kind = kind or draw.one(
        ("one", "one", "one", "one", "two", "two", "two", "two", "none", "none", "result", "result")
    )
    tools = _different_tools(draw, draw.one((1, 1, 1, 2, 2, 3, 4) if kind in ("one", "two") else (1, 1, 1, 2, 3)))
    if kind == "none":
        question, answer = _unanswerable(draw, tools)
        item = Item("everyday tools", (), [{"role": "user", "content": question}], answer)
    else:
        question, calls = _asked(draw, tools, 2 if kind == "two" or (kind == "result" and draw.chance(0.4)) else 1)
        item = Item("everyday tools", (), [{"role": "user", "content": question}], calls=calls)
        if kind == "result":
            fields = {tool.name: tool.fields for tool in tools}
            add_results(item, lambda name: _result(draw, fields[name]))
        tools = draw.some(tools, len(tools))
    if system := draw.one(SYSTEM):
        item.messages.insert(0, {"role": "system", "content": system})
    item.tools = [tool.schema for tool in tools]
    item.keys = tuple(tool.name for tool in tools)
    item.variant = kind
    item.thinking = draw.chance(0.7)
    return item


def _tool(draw: Draw) -> Tool:
    return everyday_tool(draw) if draw.chance(0.5) else tool_of_words(draw)


def _different_tools(draw: Draw, count: int) -> list[Tool]:
    tools: list[Tool] = []
    while len(tools) < count:
        tool = _tool(draw)
        if not any(tool.name == other.name or set(tool.topics) & set(other.topics) for other in tools):
            tools.append(tool)
    return tools


def _asked(draw: Draw, tools: list[Tool], count: int) -> tuple[str, list[dict[str, Any]]]:
    """Return a request for one or two calls, and the calls."""
    first = tools[0]
    if count == 1:
        said, (arguments,) = first.ask(draw)
        return _spoken(draw, said), [{"name": first.name, "arguments": arguments}]
    if len(tools) == 1 or draw.chance(0.4):
        said, both = first.ask_twice(draw)
        if both[0] != both[1]:
            return _spoken(draw, said), [{"name": first.name, "arguments": arguments} for arguments in both]
    second = tools[1] if len(tools) > 1 else _another(draw, tools)
    (said, (arguments,)), (more, (others,)) = first.ask(draw), second.ask(draw)
    calls = [{"name": first.name, "arguments": arguments}, {"name": second.name, "arguments": others}]
    if _asks(said) != _asks(more) or draw.chance(0.2):
        return f"{_ended(_spoken(draw, said))} {_spoken(draw, more)}", calls
    return _spoken(draw, draw.one(BOTH).format(a=said.rstrip("?"), b=more)), calls


def _another(draw: Draw, tools: list[Tool]) -> Tool:
    """Add a tool, where one that takes no arguments would be called twice for nothing."""
    while True:
        more = _different_tools(draw, 1)[0]
        if more.name != tools[0].name and not set(more.topics) & set(tools[0].topics):
            tools.append(more)
            return more


def _spoken(draw: Draw, said: str) -> str:
    """Return a request as a sentence."""
    patterns = _QUESTION if _asks(said) else _PLAIN if said.startswith(("I ", "we ")) else POLITE
    said = said.rstrip("?")
    return draw.one(patterns).format(r=said, R=said[:1].upper() + said[1:])


def _asks(said: str) -> bool:
    return said.split()[0] in _ASKING


def _ended(sentence: str) -> str:
    return sentence if sentence.endswith((".", "?")) else f"{sentence}."


def _unanswerable(draw: Draw, tools: list[Tool]) -> tuple[str, str]:
    """Return a question that none of the tools answers, and what is said instead."""
    if draw.chance(0.3):
        return other_question(draw)
    missing = _tool(draw)
    while any(_words(missing) & _words(tool) for tool in tools):
        missing = _tool(draw)
    return _spoken(draw, missing.ask(draw)[0]), NO_TOOL


def _words(tool: Tool) -> set[str]:
    return {word for topic in tool.topics for word in topic.split()}


def _result(draw: Draw, fields: tuple[str, ...]) -> tuple[str, str]:
    """Return what a tool gives back and the sentence that tells it."""
    kind = draw.number(0, 9)
    if (short := outcome(draw, kind, fields[0])) is not None:
        return short
    if kind == 2:
        said = f"{draw.one((new_name(draw), str(draw.number(1, 99)), draw.one(_STATES)))} {draw.one(_STATES)}"
        return said, f"The tool says: {said}."
    others = (new_word(draw), "sky", "owner", "place", "size", "level", "state", "wind_speed", "next_step")
    names = draw.some(fields, min(len(fields), draw.number(1, 3)))
    names = list(dict.fromkeys([*names, draw.one(others), draw.one(others)]))[: draw.number(1, 4)]
    result = {name: _told(draw) for name in names}
    return json.dumps(result), sentence({name.replace("_", " "): value for name, value in result.items()})


def _told(draw: Draw) -> str | int | float:
    kind = draw.number(0, 5)
    if kind <= 1:
        return draw.number(0, 999)
    if kind == 2:
        return draw.number(1, 999) / 10
    if kind == 3:
        return draw.one([*COLOURS, *WEEKDAYS, *CITIES, *_STATES])
    return draw.one(
        (new_name(draw), f"{draw.number(0, 23)}:{draw.number(0, 59):02}", f"{draw.number(1, 99)} {new_word(draw)}")
    )
