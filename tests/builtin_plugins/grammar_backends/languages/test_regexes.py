"""Regexes mean what ECMA-262 says, over decoded text."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from builtin_plugins.grammar_backends.languages.regex_compiler import (
    match_language,
    search_language,
)
from builtin_plugins.grammar_backends.languages.regex_parser import RegexError

ATOMS = ["a", "b", "1", "_", ".", r"\d", r"\w", r"\s", r"\W", "[ab]", "[^a]", r"[a\d]", r"\n", "é"]
ASSERTIONS = ["^", "$", r"\b", r"\B", "(?=a)", "(?!b1)", "(?=.*1)", "(?<=a)", "(?<!b)"]
TEXTS = st.text(alphabet="ab1_ \né🐲", max_size=6)
BMP_TEXTS = st.text(alphabet="ab1_ \né", max_size=6)
"""Node also finds empty matches between the halves of a surrogate pair."""


def patterns() -> st.SearchStrategy[str]:
    """Return regexes that mean the same to Python, but for `$` before a final line end."""

    def grow(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        times = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,3}"])
        return st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, times).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
            inner.map(lambda part: f"(?!{part})"),
        )

    return st.recursive(st.sampled_from(ATOMS + ASSERTIONS), grow, max_leaves=6)


def python_search(pattern: str, text: str) -> bool:
    return re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None


@given(patterns(), st.lists(TEXTS, max_size=6))
@settings(max_examples=200, deadline=None)
def test_regexes_match_as_in_python(pattern: str, texts: list[str]) -> None:
    try:
        language = search_language(pattern)
    except RegexError:
        return  # a lookbehind together with other assertions
    for text in texts:
        if not text and r"\B" in pattern:
            continue  # Python's \B never matches the empty text
        assert language.matches(text) == python_search(pattern, text), (pattern, text)


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        ("^C:\\\\[a-z]+$", "C:\\temp", "C:temp"),
        ('^"x"$', '"x"', "x"),
        ("^.+\\n.+$", "a\nb", "ab"),
        ("^(?!bad).*$", "good", "badly"),
        ("(?=a)ab", "xab", "b"),
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", "+1.5", "+"),
        ("foo", "a foo b", "fo"),
        ("^$", "", "a"),
        (r"^\p{Lu}\u0061\u{1F432}$", "Äa🐲", "äa🐲"),
        (r"^\ud83d\udc32$", "🐲", "🐲🐲"),
        (r"^[\w.-]+$", "a-b.c", "a b"),
        (r"^\x41\cJ$", "A\n", "A"),
        (r"^\s$", "\ufeff", "\x1c"),
        ("^.$", "\x85", "\u2028"),
        ("(?<name>a)b", "ab", "b"),
    ],
)
def test_patterns_match_parts_of_decoded_text(pattern: str, fits: str, fails: str) -> None:
    assert search_language(pattern).matches(fits)
    assert not search_language(pattern).matches(fails)


@pytest.mark.parametrize("pattern", ["a^b", "$a", r"a\bb", "(?=a)b"])
def test_contradictory_assertions_match_nothing(pattern: str) -> None:
    assert search_language(pattern).is_empty()


@pytest.mark.parametrize(
    "pattern",
    [
        r"\Aab\Z",
        r"\Gab",
        r"a\Kb",
        r"\Qa.b\E",
        r"\h",
        "[[:alpha:]]+",
        "[a-z&&[^b]]",
        "(?i)a",
        r"(a)\1",
        "a++",
        "(a",
        "a)",
        "[a",
        "a{2,1}",
        "*a",
        r"\p{Greek}",
        "a**",
    ],
)
def test_unknown_syntax_is_rejected_and_not_read_as_letters(pattern: str) -> None:
    with pytest.raises(RegexError):
        search_language(pattern)


def test_excessive_automata_are_rejected_in_bounded_time() -> None:
    with pytest.raises(RegexError, match="automaton of more than"):
        search_language("(a|b)*a(a|b){40}c")


def test_whole_texts_match_without_anchors() -> None:
    assert match_language("a|ab").matches("ab")
    assert not match_language("a|ab").matches("abc")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@given(st.lists(st.tuples(patterns(), st.lists(BMP_TEXTS, min_size=1, max_size=4)), min_size=20))
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
def test_regexes_match_as_in_node(cases: list[tuple[str, list[str]]]) -> None:
    script = (
        "const cases = JSON.parse(require('fs').readFileSync(0));"
        "console.log(JSON.stringify(cases.map(([p, ts]) => "
        "ts.map(t => new RegExp(p, 'u').test(t)))))"
    )
    done = subprocess.run(
        ["node", "-e", script], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    for (pattern, texts), results in zip(cases, json.loads(done.stdout), strict=True):
        try:
            language = search_language(pattern)
        except RegexError:
            continue
        assert [language.matches(text) for text in texts] == results, (pattern, texts)
