"""Output parsers take linear time, and no regex in the sources can take exponential time.

Model output is as hostile as client input, since the client's prompt determines it.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.output_parsers.api import ParseRequest
from builtin_plugins.output_parsers.testing import Reader
from core.plugin import load_plan, make_plan

ROOT = Path(__file__).parents[3]
REGISTRY = load_plan(make_plan(["none", "tool_parsers", "reasoning_parsers"]))
FORMATS = [
    (kind, registered.entry.name, registered.entry.target)
    for kind in ("tool_parsers", "reasoning_parsers")
    for registered in REGISTRY.entries(kind)
]
DISTINCT = list({target: (kind, name) for kind, name, target in FORMATS}.values())
"""One of the names of each format."""
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}},
    }
]
SHORT = 3_000
FACTOR = 6
MAX_RATIO = 14.0
"""Maximum time ratio for six times the text; quadratic time takes 36 times as long."""
FUNCTIONS = {
    "compile",
    "match",
    "search",
    "sub",
    "subn",
    "fullmatch",
    "split",
    "findall",
    "finditer",
}


def hostile_units(form: Any) -> list[str]:
    """Return texts to repeat: unclosed markers, and starts of calls."""
    markers = sorted(form.markers) if hasattr(form, "markers") else []
    units = [
        "[f(a=[",
        "f(a='\\'",
        '{"name": "f", "a": "\\"',
        "<parameter=a>x<",
        "[a, ",
        " \n",
        "<<",
        "a(b=c(",
        "</think",
    ]
    return [*units, *markers[:6], "".join(markers)]


def parse_time_s(form: Any, kind: str, text: str) -> float:
    """Return the processor time of parsing a text in pieces of 100 characters."""
    formats = {"tools": form} if kind == "tool_parsers" else {"reasoning": form}
    reader = Reader(**formats, request=ParseRequest(tools=TOOLS))
    started = time.thread_time()
    reader.read((text[at : at + 100], ()) for at in range(0, len(text), 100))
    return time.thread_time() - started


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize(("kind", "name"), DISTINCT)
def test_parser_takes_linear_time(kind: str, name: str) -> None:
    form: Any = REGISTRY.load(REGISTRY.choose(kind, name))
    beginning = "".join(sorted(getattr(form, "markers", ()))[:1])
    for unit in filter(None, hostile_units(form)):
        short, long = (beginning + unit * (size // len(unit)) for size in (SHORT, FACTOR * SHORT))
        ratios: list[float] = []
        # Repeated, since cache misses on a busy machine cost time as well.
        while not ratios or (min(ratios) > MAX_RATIO and len(ratios) < 6):
            ratios.append(
                parse_time_s(form, kind, long) / max(parse_time_s(form, kind, short), 1e-4)
            )
        assert min(ratios) <= MAX_RATIO, f"{unit!r}: {ratios}"


def regexes() -> Iterator[tuple[str, str]]:
    """Return the location and pattern of every literal in a call of an `re` function."""
    for folder in ("core", "builtin_plugins", "plugins", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Call(
                        func=ast.Attribute(value=ast.Name(id="re"), attr=function),
                        args=[ast.Constant(value=pattern), *_],
                    ) if function in FUNCTIONS:
                        text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def has_nested_repeats(pattern: str) -> bool:
    """Return whether an unbounded repeat contains another one and can backtrack into it."""
    return _nested(re._parser.parse(pattern), False)  # type: ignore[attr-defined]


def _nested(parsed: Any, inside: bool) -> bool:
    for operation, argument in parsed:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _low, high, body = argument
            unbounded = str(high) == "MAXREPEAT"
            if (unbounded and inside) or _nested(
                body, inside or (unbounded and not _is_separated(body))
            ):
                return True
        elif name == "POSSESSIVE_REPEAT":  # never backtracks
            continue
        elif (
            (name == "SUBPATTERN" and _nested(argument[-1], inside))
            or (name == "BRANCH" and any(_nested(branch, inside) for branch in argument[1]))
            or (name in ("ASSERT", "ASSERT_NOT") and _nested(argument[1], False))
        ):
            return True
    return False


def _is_separated(body: Any) -> bool:
    """Return whether a repeated part starts with a fixed character, which separates repeats."""
    while len(body) and str(body[0][0]) == "SUBPATTERN":
        body = body[0][1][-1]
    return len(body) > 1 and str(body[0][0]) == "LITERAL"


@pytest.mark.parametrize(
    ("pattern", "bad"),
    [
        (r"(a+)+b", True),
        (r"(a*)*", True),
        (r"((ab?)*c?)*", True),
        (r"(\w+\s*)+:", True),
        (r"(.*a){9}", False),
        (r"[a-z][a-z0-9]*(_[a-z0-9]+)*", False),
        (r"a+b+", False),
        (r"(?:a|b)*", False),
        (r"(?:[^a]++|b)*+", False),
    ],
)
def test_nested_repeats_are_detected(pattern: str, bad: bool) -> None:
    assert has_nested_repeats(pattern) == bad


def test_sources_have_no_nested_repeats() -> None:
    patterns = list(regexes())
    assert len(patterns) > 20
    assert [location for location, pattern in patterns if has_nested_repeats(pattern)] == []
