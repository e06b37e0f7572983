"""What models really write, as data: one YAML file per format under `tests/tool_parsers/cases` and
`tests/reasoning_parsers/cases`.

The head of a file: `parsers`, the names of the format, and what holds for all of its `cases`:
`tools`, `special`, `template_kwargs`, `prompt_end`. A case:

    name, text     what it shows, and what the model writes tools          {tool: {argument: type or
    schema}}; `{}` for none special        markers that are special tokens; without it the text is
    read as text, and by special tokens as well template_kwargs, prompt_end, whole    as in
    `ParseRequest` tool_parser, reasoning_parser         the other kind of parser, where the case
    needs both reasoning, content, calls             what a client sees; `calls` is a list of {name,
    arguments, id if it has one} source         where it, or in another family the same slip, is
    published; or `template` malformed      true where it is not as the family's template writes it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from builtin_plugins.output_parsers.runtime import ParseRequest

TESTS = Path(__file__).parents[1]
KINDS = ("tool_parsers", "reasoning_parsers")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
HEAD = frozenset(
    {
        "tools",
        "special",
        "template_kwargs",
        "prompt_end",
        "tool_parser",
        "reasoning_parser",
        "whole",
    }
)


@dataclass(frozen=True, slots=True)
class Written:
    """One text, and what a client sees of it."""

    name: str
    text: str
    source: str
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    special: Sequence[str] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    prompt_end: str = ""
    whole: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning: str = ""
    content: str = ""
    calls: Sequence[Mapping[str, Any]] = ()
    malformed: bool = False

    @property
    def request(self) -> ParseRequest:
        """The request whose answer it is."""
        return ParseRequest(
            [_tool(*named) for named in self.tools.items()],
            self.template_kwargs,
            self.prompt_end,
            self.whole,
        )

    @property
    def expected_calls(self) -> tuple[tuple[str, str], ...]:
        """(name, arguments as JSON) of each call: there 1, 1.0 and true are three values."""
        return tuple((call["name"], as_json(call.get("arguments", {}))) for call in self.calls)


@dataclass(frozen=True, slots=True)
class Family:
    """The cases of one format."""

    file: str
    parsers: tuple[str, ...]
    cases: tuple[Written, ...]


def as_json(value: Any) -> str:
    """Return a value as JSON that is the same for equal values only."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


@cache
def families(kind: str) -> tuple[Family, ...]:
    """Return what is written for a kind of parser."""
    return tuple(map(_family, sorted((TESTS / kind / "cases").glob("*.yaml"))))


def cases(kind: str) -> Iterator[tuple[str, Written]]:
    """Yield every case with each name of a parser that it holds for."""
    for family in families(kind):
        for parser in family.parsers:
            for case in family.cases:
                yield parser, case


def _family(path: Path) -> Family:
    head = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    parsers = head.pop("parsers")
    written = head.pop("cases")
    assert head.keys() <= HEAD, f"{path.name}: unknown {sorted(head.keys() - HEAD)} in its head"
    return Family(path.name, tuple(parsers), tuple(Written(**{**head, **case}) for case in written))


def _tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        key: {"type": stated} if isinstance(stated, str) else stated
        for key, stated in arguments.items()
    }
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": known}},
    }
