"""Parsers of model output read twice the text in twice the time, and no regex of ours can do
otherwise.

What a model says is as hostile as what a client sends, since the client tells it what to say.
"""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core.api import ParseRequest
from core.plugin import load_plan, make_plan
from core.testing.parsing import Reader

ROOT = Path(__file__).parents[2]
REGISTRY = load_plan(make_plan(["none", "tool_parsers", "reasoning_parsers"]))
FORMATS = [
    (kind, registered.entry.name, registered.entry.target)
    for kind in ("tool_parsers", "reasoning_parsers")
    for registered in REGISTRY.entries(kind)
]
DISTINCT = list({target: (kind, name) for kind, name, target in FORMATS}.values())
"""Several names may be one format."""
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"properties": {"a": {"type": "object"}}}},
    }
]
SHORT = 3_000
TIMES = 6
MOST = 14.0
"""Times the work for six times the text; what grows with the square takes 36 times."""
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
    """Return what is repeated: opening marks that nothing closes, and the beginnings of calls."""
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


def work_s(form: Any, kind: str, text: str) -> float:
    """Return the processor time of reading a text in pieces."""
    given = {"tools": form} if kind == "tool_parsers" else {"reasoning": form}
    reader = Reader(**given, request=ParseRequest(tools=TOOLS))
    started = time.thread_time()
    reader.read((text[at : at + 100], ()) for at in range(0, len(text), 100))
    return time.thread_time() - started


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize(("kind", "name"), DISTINCT)
def test_a_parser_reads_twice_the_text_in_twice_the_time(kind: str, name: str) -> None:
    form: Any = REGISTRY.load(REGISTRY.choose(kind, name))
    beginning = "".join(sorted(getattr(form, "markers", ()))[:1])
    for unit in filter(None, hostile_units(form)):
        short, long = (beginning + unit * (size // len(unit)) for size in (SHORT, TIMES * SHORT))
        ratios: list[float] = []
        while not ratios or (
            min(ratios) > MOST and len(ratios) < 6
        ):  # caches of a busy machine cost time as well
            ratios.append(work_s(form, kind, long) / max(work_s(form, kind, short), 1e-4))
        assert min(ratios) <= MOST, f"{unit!r}: {ratios}"


def regexes() -> Iterator[tuple[str, str]]:
    """Return every literal given to a function of `re`, and where it stands."""
    for folder in ("core", "builtin_plugins", "plugins", "kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.args
                ):
                    ours = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
                    if (
                        ours
                        and node.func.attr in FUNCTIONS
                        and isinstance(node.args[0], ast.Constant)
                    ):
                        pattern = node.args[0].value
                        text = pattern.decode("latin-1") if isinstance(pattern, bytes) else pattern
                        yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def repeats_in_repeats(pattern: str) -> bool:
    """Say whether something without an end repeats what repeats without an end, and may be taken
    back.
    """
    return _nested(re._parser.parse(pattern), False)  # type: ignore[attr-defined]


def _nested(parsed: Any, inside: bool) -> bool:
    for kind, what in parsed:
        name = str(kind)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            _low, high, body = what
            endless = str(high) == "MAXREPEAT"
            if (endless and inside) or _nested(body, inside or (endless and not _separated(body))):
                return True
        elif name == "POSSESSIVE_REPEAT":  # takes nothing back
            continue
        elif (
            (name == "SUBPATTERN" and _nested(what[-1], inside))
            or (name == "BRANCH" and any(_nested(branch, inside) for branch in what[1]))
            or (name in ("ASSERT", "ASSERT_NOT") and _nested(what[1], False))
        ):
            return True
    return False


def _separated(body: Any) -> bool:
    """Say whether a repeated piece begins with a fixed character, which tells its rounds apart."""
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
def test_the_look_at_regexes_knows_what_explodes(pattern: str, bad: bool) -> None:
    assert repeats_in_repeats(pattern) == bad


def test_no_regex_of_ours_repeats_what_repeats() -> None:
    found = list(regexes())
    assert len(found) > 20
    assert [place for place, pattern in found if repeats_in_repeats(pattern)] == []
