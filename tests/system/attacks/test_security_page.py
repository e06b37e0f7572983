"""`docs/guides/limits.md` and the corpus agree."""

from __future__ import annotations

import re
from pathlib import Path

from tests.system.attacks.corpus_files import load_corpus

PAGE = (Path(__file__).parents[3] / "docs" / "guides" / "limits.md").read_text()
CORPUS = load_corpus()
ADVISORIES = 59
ID = re.compile(r"(?:CVE-\d{4}-\d+|GHSA(?:-[a-z0-9]{4}){3})")


def rows(title: str) -> list[list[str]]:
    """Return the table rows under a second-level heading."""
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    lines = [
        line
        for line in section.splitlines()
        if line.startswith("| ") and not line.startswith("| ---")
    ]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] not in ("advisory", "attack", "case", "vLLM")]


def corpus_names(cell: str) -> list[str]:
    """Return the names of corpus files in a cell."""
    return re.findall(r"`([a-z0-9-]+)`", cell)


def test_every_advisory_has_file_or_reason() -> None:
    advisories = rows("Advisories of vLLM")
    assert len(advisories) == len({row[0] for row in advisories}) == ADVISORIES
    for advisory, _, files, note in advisories:
        assert ID.fullmatch(advisory)
        if corpus_names(files):
            assert all(advisory in CORPUS[name].source for name in corpus_names(files)), advisory
        else:
            assert files == "does not apply"
            assert note, advisory


def test_every_case_of_other_engines_has_file() -> None:
    for case, _, files, _ in rows("Other engines"):
        (name,) = corpus_names(files)
        years = re.findall(r"(?:CVE-(\d{4}))?-(\d{4,})\b", case.replace("CVE-", " CVE-"))
        numbers = {number for _, number in years}
        assert numbers <= {source.rpartition("-")[2] for source in CORPUS[name].source}, case


def test_every_file_is_on_page() -> None:
    files = {
        name
        for title in ("Found here", "Advisories of vLLM", "Other engines")
        for row in rows(title)
        for name in corpus_names(row[1] if title == "Found here" else row[2])
    }
    assert files == CORPUS.keys()


def test_every_advisory_in_corpus_is_on_page() -> None:
    listed = set(ID.findall(PAGE))
    shortened = {f"CVE-2026-{number}" for number in re.findall(r"(?<=, )-(\d{4,})", PAGE)}
    sources = {
        source for attack in CORPUS.values() for source in attack.source if ID.fullmatch(source)
    }
    assert sources - listed - shortened == {"CVE-2025-3162", "CVE-2025-32381"}, (
        "other ids of cases that are on the page"
    )
