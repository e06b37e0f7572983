"""Patterns of configs fit what Python's do, and none takes longer than a moment, whoever wrote it."""

from __future__ import annotations

import random
import re

import pytest

from builtin_plugins.quant_methods.stored import patterns
from builtin_plugins.quant_methods.stored.patterns import Pattern
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
    """Return a pattern; of those that look behind, not all are ones."""
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


@pytest.mark.parametrize("few", [-1, patterns.FEW])
def test_a_pattern_fits_what_pythons_fits(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "FEW", few)  # -1: none is left to `re`
    chance = random.Random(3)
    asked = 0
    while asked < 3000:
        text = chance.choice(["", "", "", "(?i)"]) + made(chance, 4)
        name = "".join(chance.choice("abAB.1_") for _ in range(chance.randrange(1, 7)))
        try:
            known = re.compile(text)
        except re.error:
            continue
        asked += 1
        pattern = Pattern(text)
        found = pattern.begins(name), pattern.is_in(name), pattern.is_all_of(name)
        wanted = (known.match(name), known.search(name), known.fullmatch(name))
        assert found == tuple(match is not None for match in wanted), (text, name)


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
def test_no_pattern_takes_long(text: str) -> None:
    """With `re` each of these outlives the test by far: there are more ways than can be counted."""
    assert not Pattern(text).is_in(NAME)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "unterminated subpattern"),
        ("[", "unterminated character set"),
        ("a{99999999999999}", "repetition number is too large"),
        ("(" * 5000 + ")" * 5000, "recursion"),
        (r"(\w+)\1*", "it has groupref"),
        ("(?>.*.*.*.*)!", "it has atomic_group"),
    ],
)
def test_what_is_no_pattern_is_named(text: str, reason: str) -> None:
    with pytest.raises(
        ModelError, match=f"quantization_config: .* is no pattern that is matched here: .*{reason}"
    ):
        Pattern(text).begins(NAME)
