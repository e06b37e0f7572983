"""Model outputs as data: a YAML file per format, in the parsers' `cases` folders.

The head of a file has `parsers`, the names of the format, and defaults for all of its `cases`:
`tools`, `special`, `template_kwargs`, `prompt_end`. A case:

    name, text     description, and the model's output
    tools          {tool: {argument: type or schema}}; `{}` for none
    special        markers that are special tokens; default: both as text and as special tokens
    template_kwargs, prompt_end, whole    as in `ParseRequest`
    tool_parser, reasoning_parser         the other kind of parser, if the case needs both
    reasoning, content, calls             expected output; a call is {name, arguments, optional id}
    source         URL of the publication of this or an equivalent output; or `template`
    malformed      true if the text deviates from the family's template
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from builtin_plugins.output_parsers.api import ParseRequest
from builtin_plugins.output_parsers.testing import Reader
from core.plugin import load_plan, make_plan

FOLDERS = {"tool_parsers": "tools", "reasoning_parsers": "reasoning"}
KINDS = tuple(FOLDERS)
TESTS = Path(__file__).parents[1]
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
class OutputCase:
    """One output and its expected parse."""

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
        """The request of the output."""
        return ParseRequest(
            [_tool(*named) for named in self.tools.items()],
            self.template_kwargs,
            self.prompt_end,
            self.whole,
        )

    @property
    def expected_calls(self) -> tuple[tuple[str, str], ...]:
        """(name, arguments as JSON) of each call; in JSON 1, 1.0 and true differ."""
        return tuple((call["name"], as_json(call.get("arguments", {}))) for call in self.calls)


@dataclass(frozen=True, slots=True)
class Family:
    """The cases of one format."""

    file: str
    parsers: tuple[str, ...]
    cases: tuple[OutputCase, ...]


def as_json(value: Any) -> str:
    """Return a value as canonical JSON."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True)


@cache
def families(kind: str) -> tuple[Family, ...]:
    """Return the families of a kind of parser."""
    files = sorted((TESTS / FOLDERS[kind] / "cases").glob("*.yaml"))
    assert files, f"no cases of {kind}"
    return tuple(map(_family, files))


def cases_of(kind: str, parser: str) -> tuple[OutputCase, ...]:
    """Return the cases of a parser."""
    return next(found.cases for found in families(kind) if parser in found.parsers)


def distinct_parsers() -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of every parser, by the first of its names in a family: further names of
    the same format read alike.
    """
    for kind in KINDS:
        for family in families(kind):
            first = {id(FORMATS[kind][name]): name for name in reversed(family.parsers)}
            yield from ((kind, name) for name in family.parsers if name in first.values())


def _family(path: Path) -> Family:
    head = yaml.load(path.read_text(encoding="utf-8"), _LOADER)
    parsers = head.pop("parsers")
    cases = head.pop("cases")
    assert head.keys() <= HEAD, f"{path.name}: unknown {sorted(head.keys() - HEAD)} in its head"
    return Family(
        path.name, tuple(parsers), tuple(OutputCase(**{**head, **case}) for case in cases)
    )


def _tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    known = {
        key: {"type": stated} if isinstance(stated, str) else stated
        for key, stated in arguments.items()
    }
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": known}},
    }


REGISTRY = load_plan(make_plan(["none", *KINDS]))
FORMATS = {
    kind: {found.entry.name: REGISTRY.load(found) for found in REGISTRY.entries(kind)}
    for kind in KINDS
}


def reader_of(kind: str, parser: str, case: OutputCase, *, by_id: bool = False) -> Reader:
    """Return the parsers of a case. `by_id`: all markers are special tokens."""
    tools = parser if kind == "tool_parsers" else case.tool_parser
    reasoning = parser if kind == "reasoning_parsers" else case.reasoning_parser
    formats = [FORMATS[KINDS[0]].get(tools or ""), FORMATS[KINDS[1]].get(reasoning or "")]
    special = frozenset(case.special or ())
    if by_id:
        special = frozenset(
            mark for form in formats if form for mark in form.markers if mark in case.text
        )
    return Reader(tools=formats[0], reasoning=formats[1], request=case.request, special=special)
