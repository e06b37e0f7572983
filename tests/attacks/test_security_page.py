"""`docs/security.md` and the corpus say the same."""

from __future__ import annotations

import re
from pathlib import Path

from corpus_files import load_corpus

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
CORPUS = load_corpus()
ADVISORIES = 59
ID = re.compile(r"(?:CVE-\d{4}-\d+|GHSA(?:-[a-z0-9]{4}){3})")


def rows(title: str) -> list[list[str]]:
    """Return the rows of the tables below a heading of the second level."""
    (part,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [
        line for line in part.splitlines() if line.startswith("| ") and not line.startswith("| ---")
    ]
    found = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in found if row[0] not in ("advisory", "attack", "case", "vLLM")]


def named(cell: str) -> list[str]:
    """Return the corpus files that a cell names."""
    return re.findall(r"`([a-z0-9-]+)`", cell)


def test_every_advisory_has_a_file_that_names_it_or_a_reason() -> None:
    advisories = rows("Advisories of vLLM")
    assert len(advisories) == len({row[0] for row in advisories}) == ADVISORIES
    for advisory, _, shown, note in advisories:
        assert ID.fullmatch(advisory)
        if named(shown):
            assert all(advisory in CORPUS[name].source for name in named(shown)), advisory
        else:
            assert shown == "does not apply"
            assert note, advisory


def test_every_case_of_other_engines_has_a_file() -> None:
    for case, _, shown, _ in rows("Other engines"):
        (name,) = named(shown)
        years = re.findall(r"(?:CVE-(\d{4}))?-(\d{4,})\b", case.replace("CVE-", " CVE-"))
        numbers = {number for _, number in years}
        assert numbers <= {each.rpartition("-")[2] for each in CORPUS[name].source}, case


def test_every_file_is_named_on_the_page() -> None:
    shown = {
        name
        for title in ("Found here", "Advisories of vLLM", "Other engines")
        for row in rows(title)
        for name in named(row[1] if title == "Found here" else row[2])
    }
    assert shown == CORPUS.keys()


def test_every_advisory_of_a_file_is_on_the_page() -> None:
    written = set(ID.findall(PAGE))
    shortened = {f"CVE-2026-{number}" for number in re.findall(r"(?<=, )-(\d{4,})", PAGE)}
    sources = {
        source for attack in CORPUS.values() for source in attack.source if ID.fullmatch(source)
    }
    assert sources - written - shortened == {"CVE-2025-3162", "CVE-2025-32381"}, (
        "other ids of cases that are on the page"
    )
