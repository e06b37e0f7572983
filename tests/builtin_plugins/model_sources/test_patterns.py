"""Config patterns match like Python's `re`, in bounded time."""

from __future__ import annotations

import random
import re

import pytest

from builtin_plugins.model_sources import patterns
from builtin_plugins.model_sources.api import Pattern
from core.errors import ModelError

NAME = "model.layers.10.self_attn.q_proj"
PIECES = [
    "a",
    "b",
    r"\.",
    ".",
    "[ab]",
    "[^a]",
    r"\d",
    r"\w",
    r"\W",
    "[a-c1]",
    r"\S",
    "^",
    "$",
    r"\b",
    r"\B",
    "",
]
REPEATS = ["*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,3}?"]


def made(chance: random.Random, depth: int) -> str:
    """Return a random pattern; lookbehinds may be invalid."""
    kind = chance.randrange(6) if depth else 0
    inner = made(chance, depth - 1) if kind else ""
    return {
        0: lambda: chance.choice(PIECES),
        1: lambda: inner + made(chance, depth - 1),
        2: lambda: f"(?:{inner}|{made(chance, depth - 1)})",
        3: lambda: f"({inner}){chance.choice(REPEATS)}",
        4: lambda: f"(?{chance.choice('=!')}{inner})",
        5: lambda: f"(?<{chance.choice('=!')}{inner})",
    }[kind]()


@pytest.mark.parametrize("few", [-1, patterns.MAX_RE_CHOICES])
def test_pattern_matches_like_re(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MAX_RE_CHOICES", few)  # -1: none is left to `re`
    chance = random.Random(3)
    num_patterns = 0
    while num_patterns < 3000:
        text = chance.choice(["", "", "", "(?i)"]) + made(chance, 4)
        name = "".join(chance.choice("abAB.1_") for _ in range(chance.randrange(1, 7)))
        try:
            known = re.compile(text)
        except re.error:
            continue
        num_patterns += 1
        pattern = Pattern(text)
        found = pattern.match(name), pattern.search(name), pattern.fullmatch(name)
        expected = (known.match(name), known.search(name), known.fullmatch(name))
        assert found == tuple(match is not None for match in expected), (text, name)


@pytest.mark.parametrize(
    "text",
    [
        r"(.*)*!",
        r"([a-z._0-9]*)*!",
        r"((([a-z._0-9]*)*)*)*!",
        r"(.|.)*!",
        ".*" * 30 + "!",
        "(?:.|.)" * 40 + "!",
        "(?:.?.?)" * 40 + "!",
        "((((a{1000}){1000}){1000}){1000})",
        "(.?){1000000}!",
        "(?:" * 60 + ".*" + ")*" * 60 + "!",
    ],
)
def test_pathological_patterns_run_in_bounded_time(text: str) -> None:
    """With `re` each of these takes longer than the test: it backtracks exponentially."""
    assert not Pattern(text).search(NAME)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "unterminated subpattern"),
        ("[", "unterminated character set"),
        ("a{99999999999999}", "repetition number is too large"),
        ("(" * 5000 + ")" * 5000, "recursion"),
        (r"(\w+)\1*", "unsupported: groupref"),
        ("(?>.*.*.*.*)!", "unsupported: atomic_group"),
    ],
)
def test_invalid_pattern_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(
        ModelError,
        match=f"quantization_config: got .*; expected a supported regular expression .*{reason}",
    ):
        Pattern(text).match(NAME)
