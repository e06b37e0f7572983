"""The ratchet of style: counts of words that say nothing to the field, and of dense code, only
fall.

`docs/design/glossary.md` holds the words that replace them.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
MAX_COLUMNS: Final = 100
MAX_MEAN_COLUMNS: Final = 45
KERNEL_ROOMS: Final = ("api", "config", "contracts", "engine", "frontend", "kv", "plugin")
KERNEL_ROOMS += ("scheduler", "types", "worker")

PERSONS: Final = (
    *("who", "whom", "whose", "whoever"),
    *("nobody", "somebody", "anybody", "everybody"),
)
CEILINGS: Final[Mapping[str, int]] = {
    **dict.fromkeys(PERSONS, 0),
    "told": 2,
    "asked": 0,
    "wanted": 0,
    "kept": 0,
    "shown": 0,
    "beside": 0,
    "behind": 0,
    "most": 21,
}
"""Occurrences allowed per word in code, comments, docstrings, messages and pages.

What remains is plain English ("most likely"), sample text of prompts, and names of
others ("most_common"). It was 1,722 for "most" and 1,405 for "asked" in November 2026. Lower a
number when the count has fallen.
"""
TRAINING_TEXT: Final = (
    "examples/demo_model",
    "builtin_plugins/model_sources/demo/model",
    "builtin_plugins/model_sources/demo/vision",
)
"""Sentences that the demo model was trained on: changing them changes the model."""
TERMS: Final = (
    "draft token",
    "accepted token",
    "acceptance rate",
    "block table",
    "slot mapping",
    "prefill",
    "preemption",
    "checksum",
    "circuit breaker",
    "histogram",
    "rate limit",
    "stop string",
    "sampling metadata",
    "CUDA graph",
)
"""Terms of the field that both the glossary and the code use."""

PRAGMA: Final = re.compile(r"\s*# (type: ignore|noqa).*$")
"""Not counted as part of a line, as in ruff."""
WORD: Final = re.compile(
    rf"(?<![a-z])(?<!at (?=most))({'|'.join(CEILINGS)})(?![a-z])", re.IGNORECASE
)
"""Not "at most", which says nothing but a bound."""


def tracked(*suffixes: str) -> Iterator[Path]:
    """Yield the repository's files of these suffixes, those not yet committed included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    for name in sorted(set(done.stdout.splitlines())):
        path = ROOT / name
        if path.suffix not in suffixes or not path.is_file() or path == Path(__file__):
            continue
        if not name.startswith(TRAINING_TEXT):
            yield path


def words_of(text: str) -> Counter[str]:
    """Return how often each counted word stands in a text; `_` separates words of a name."""
    return Counter(match[1].lower() for match in WORD.finditer(text.replace("_", " ")))


def unrelated_assignments(tree: ast.AST) -> Iterator[int]:
    """Yield the lines of `a, b = x, y` whose values are not a permutation of the targets."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)):
            continue
        values = {ast.unparse(value) for value in node.value.elts}
        for target in node.targets:
            if isinstance(target, ast.Tuple):
                names = {ast.unparse(name) for name in target.elts}
                if not names & values:
                    yield node.lineno


def test_words_for_persons_and_of_speech_only_become_fewer() -> None:
    counts: Counter[str] = Counter()
    for path in tracked(".py", ".cpp", ".h", ".md", ".yaml", ".toml", ".jinja"):
        counts += words_of(path.read_text(encoding="utf-8"))
    above = {word: counts[word] for word, limit in CEILINGS.items() if counts[word] > limit}
    assert above == {}, "say it in the glossary's words"


def test_counted_words_are_found_in_names_and_prose() -> None:
    counts = words_of("def test_nobody_told(self): # Whoever asked, behind-hand; almost, toldest")
    assert counts == {"nobody": 1, "told": 1, "whoever": 1, "asked": 1, "behind": 1}


def test_no_tuple_assigns_unrelated_values() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in tracked(".py")
        for line in unrelated_assignments(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_swaps_and_unpacked_calls_are_no_unrelated_assignments() -> None:
    lines = "a, b = b, a\na, b = f()\nx, y = 1, 2\n"
    assert list(unrelated_assignments(ast.parse(lines))) == [3]


def test_no_line_is_longer_than_100_columns() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked(".py", ".cpp", ".h")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(PRAGMA.sub("", line)) > MAX_COLUMNS
    ]
    assert found == []


@pytest.mark.parametrize("room", KERNEL_ROOMS)
def test_lines_of_kernel_rooms_hold_one_thought(room: str) -> None:
    lengths = [
        len(line)
        for path in (ROOT / "core" / room).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]
    assert sum(lengths) / len(lengths) <= MAX_MEAN_COLUMNS


def test_terms_of_the_field_stand_in_glossary_and_code() -> None:
    glossary = (ROOT / "docs" / "design" / "glossary.md").read_text(encoding="utf-8").lower()
    code = "\n".join(
        path.read_text(encoding="utf-8").replace("_", " ").lower()
        for path in tracked(".py")
        if path.relative_to(ROOT).parts[0] in ("core", "builtin_plugins")
    )
    assert [term for term in TERMS if term.lower() not in glossary] == []
    assert [term for term in TERMS if term.lower() not in code] == []
