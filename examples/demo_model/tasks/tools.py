"""Calls of tools made from words: one, two at once, none when no tool fits, and the answer behind the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.tasks import engine_facts, small_talk
from examples.demo_model.tool_schemas import Tool, again, new_tool, request
from examples.demo_model.words import COLOURS, WEEKDAYS, new_name, new_word

NO_TOOL: Final = "None of my tools can do that."
POLITE: Final = (
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
BOTH: Final = ("{a} and {b}", "{a} and {b}", "{a}, and {b}", "{a}, then {b}", "{a} and also {b}")
SYSTEM: Final = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "Use the tools when they fit.",
    "You are an assistant with tools.",
)
DONE: Final = ("ok", "done", "success")


def make(draw: Draw, kind: str | None = None) -> Item:
    """Return one request with the tools at hand, or the results of a call to be told."""
    kind = kind or draw.one(("one", "one", "one", "one", "two", "two", "two", "none", "none", "result"))
    tools = _different_tools(draw, draw.one((1, 1, 1, 2, 2, 3, 4) if kind in ("one", "two") else (1, 1, 1, 2, 3)))
    if kind == "none":
        question, answer = _unanswerable(draw, tools)
        item = Item("tools", (), [{"role": "user", "content": question}], answer)
        offered = tools
    else:
        question, calls, offered = _asked(
            draw, tools, 2 if kind == "two" or (kind == "result" and draw.chance(0.3)) else 1
        )
        item = Item("tools", (), [{"role": "user", "content": question}], calls=calls)
        if kind == "result":
            nouns = {tool.name: tool.noun.split()[-1] for tool in offered}
            add_results(item, lambda name: _result(draw, nouns[name]))
    if system := draw.one(SYSTEM):
        item.messages.insert(0, {"role": "system", "content": system})
    item.tools = [tool.schema for tool in offered]
    item.keys = tuple(tool.name for tool in offered)
    item.variant = kind
    item.thinking = draw.chance(0.7)
    return item


def _different_tools(draw: Draw, count: int) -> list[Tool]:
    tools: list[Tool] = []
    while len(tools) < count:
        tool = new_tool(draw)
        same = [t for t in tools if t.name == tool.name or t.noun == tool.noun]
        if not same:
            tools.append(tool)
    return tools


def _asked(draw: Draw, tools: list[Tool], count: int) -> tuple[str, list[dict[str, Any]], list[Tool]]:
    """Return a request for one or two calls, the calls, and the tools in the order they are offered."""
    first = tools[0]
    said, arguments = request(draw, first, first.parameters)
    calls = [{"name": first.name, "arguments": arguments}]
    if count == 2:
        second = tools[1] if len(tools) > 1 and draw.chance(0.6) else first
        more, others = request(draw, second, again(draw, second))
        calls.append({"name": second.name, "arguments": others})
        said = draw.one(BOTH).format(a=said, b=more)
    return _spoken(draw, said), calls, draw.some(tools, len(tools))


def _spoken(draw: Draw, said: str) -> str:
    if said.startswith("what is"):
        return said[:1].upper() + said[1:] + "?" if draw.chance(0.8) else said
    return draw.one(POLITE).format(r=said, R=said[:1].upper() + said[1:])


def _unanswerable(draw: Draw, tools: list[Tool]) -> tuple[str, str]:
    """Return a question that none of the tools answers, and what is said instead."""
    if draw.chance(0.3):
        return other_question(draw)
    missing = new_tool(draw)
    while any(set(missing.noun.split()) & set(tool.noun.split()) for tool in tools):
        missing = new_tool(draw)
    return _spoken(draw, request(draw, missing, missing.parameters)[0]), NO_TOOL


def other_question(draw: Draw) -> tuple[str, str]:
    """Return a question that is for the model and no tool, with its answer."""
    asked = draw.one((small_talk, engine_facts)).make(draw)
    if asked.variant == "world":
        return small_talk.world_question(draw), asked.answer  # another, which no tool could answer
    return asked.messages[0]["content"], asked.answer


def add_results(item: Item, told: Callable[[str], tuple[str, str]]) -> None:
    """Let the calls of an item be made: `told` returns a tool's message and the sentence that tells it, for its name."""
    made = [{"type": "function", "function": call} for call in item.calls]
    item.messages.append({"role": "assistant", "content": "", "tool_calls": made})
    results = [told(call["name"]) for call in item.calls]
    item.messages += [{"role": "tool", "content": message} for message, _ in results]
    item.calls = []
    item.answer = " ".join(answer for _, answer in results)


def outcome(draw: Draw, kind: int, thing: str) -> tuple[str, str] | None:
    """Return what a tool says that has nothing to tell of the thing, and the sentence for it; None but for kinds 0, 1."""
    if kind == 0:
        return json.dumps({draw.one(("status", "result")): draw.one(DONE)}), "Done."
    if kind == 1:
        fault = draw.one(("not found", "no access", "too late", f"unknown {thing}", f"no {thing}"))
        return json.dumps({"error": fault}), f"The tool failed: {fault}."
    return None


def sentence(facts: Mapping[str, object]) -> str:
    """Return the sentence that tells what a tool found."""
    parts = [f"the {name} is {value}" for name, value in facts.items()]
    text = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    return f"{text[:1].upper()}{text[1:]}."


def _result(draw: Draw, noun: str) -> tuple[str, str]:
    """Return what a tool gives back and the sentence that tells it."""
    if (short := outcome(draw, draw.number(0, 9), noun)) is not None:
        return short
    names = [noun, *(draw.one((new_word(draw), "sky", "owner", "place", "size", "level", "state")) for _ in range(2))]
    names = list(dict.fromkeys(names))[: draw.number(1, 3)]
    result = {name: _told(draw) for name in names}
    return json.dumps(result), sentence(result)


def _told(draw: Draw) -> str | int | float:
    kind = draw.number(0, 5)
    if kind <= 1:
        return draw.number(0, 999)
    if kind == 2:
        return draw.number(1, 999) / 10
    if kind == 3:
        return draw.one([*COLOURS, *WEEKDAYS, "sunny", "cloudy", "rainy", "open", "closed", "ready", "busy"])
    return new_name(draw)
