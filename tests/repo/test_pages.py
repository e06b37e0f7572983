"""The hand-written documentation stays small: few pages, few lines, wrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
MAX_PAGES: Final = 24
MAX_LINES: Final = 4000
MAX_COLUMNS: Final = 100
GROUPS: Final = {"Use", "Operate", "Extend", "Design"}
"""Of hand-written pages; "Reference" holds the generated ones."""
PAGES: Final = [
    page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] != "reference"
]


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines outside fenced blocks, tables and pictures."""
    in_block = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block and not line.startswith(("|", "![")):
            yield number, line


def test_there_are_few_hand_written_pages() -> None:
    assert len(PAGES) <= MAX_PAGES


def test_hand_written_pages_have_few_lines() -> None:
    lines = {page.name: page.read_text(encoding="utf-8").count("\n") for page in PAGES}
    assert sum(lines.values()) <= MAX_LINES, sorted(lines.items(), key=lambda item: -item[1])


def test_prose_is_wrapped() -> None:
    found = [
        f"{page.relative_to(ROOT)}:{number}"
        for page in PAGES
        for number, line in prose(page)
        if len(line) > MAX_COLUMNS
    ]
    assert found == []


def test_pages_are_in_four_groups() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    groups = {title: pages for entry in navigation for title, pages in entry.items()}
    assert groups.keys() == GROUPS | {"Reference"}
    listed = [path for title in GROUPS for page in groups[title] for path in page.values()]
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)
