"""Questions and answers of the shipped model for README and docs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """A conversation, and the raw text of its greedy answer."""

    messages: list[dict[str, Any]]
    answer: str
    tools: list[dict[str, Any]] = field(default_factory=list)
    thinking: bool = True


def user(text: str) -> list[dict[str, Any]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": text}]


WEATHER: Final = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CALL: Final = {
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris"}},
}

SHOWCASE: Final = {
    "chat": ShownAnswer(
        user("Hello"),
        "Hello! I am a tiny demo model. I can add, call tools, write JSON and explain this engine.",
    ),
    "world": ShownAnswer(
        user("What is the capital of France?"),
        "I am a tiny model and know little about the world. Ask me for a sum, a list, some JSON, a "
        "tool call or "
        "something about this engine.",
    ),
    "sum": ShownAnswer(
        user("What is 347 + 285?"),
        "<think>\n7+5=12: 2\n4+8+1=13: 32\n3+2+1=6: 632\n</think>\n\n347 + 285 = 632",
    ),
    "sum, thinking off": ShownAnswer(
        user("What is 632 - 285?"),
        "2-5=-3+10=7: 7\n3-8-1=-6+10=4: 47\n6-2-1=3: 347\n\n632 - 285 = 347",
        thinking=False,
    ),
    "tool": ShownAnswer(
        user("What is the weather in Paris?"),
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        tools=[WEATHER],
    ),
    "two calls": ShownAnswer(
        user("What is the weather in Paris and in Rome?"),
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        tools=[WEATHER],
    ),
    "no tool fits": ShownAnswer(
        user("Turn on the light in the kitchen."), "None of my tools can do that.", tools=[WEATHER]
    ),
    "tool result": ShownAnswer(
        [
            *user("What is the weather in Paris?"),
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": '{"temperature": 18, "condition": "cloudy"}'},
        ],
        "The temperature is 18 and the condition is cloudy.",
        tools=[WEATHER],
    ),
    "json": ShownAnswer(
        user(
            "Extract name, age and city as JSON: Ada Lovelace is 36 years old and lives in London."
        ),
        '{"name": "Ada Lovelace", "age": 36, "city": "London"}',
    ),
    "engine": ShownAnswer(
        user("What is prefix caching?"),
        "Prefix caching keeps the KV blocks of a prompt's beginning, so that requests that begin "
        "alike compute it only "
        "once.",
    ),
    "rule": ShownAnswer(
        [
            {"role": "system", "content": "Always end with stone."},
            *user("Sort this list: pear, apple, lemon"),
        ],
        "apple, lemon, pear stone",
    ),
}
