"""Each plugin of the gallery is a page of code that keeps its contract."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from core.testing.conformance import check_plugin
from tests.system.docs.pages import DOCS, ROOT

GALLERY = {file.name: file.read_text() for file in sorted((ROOT / "examples/gallery").glob("*.py"))}
MOST_LINES = 60


def test_the_page_lists_every_plugin() -> None:
    page = (DOCS / "extend" / "plugins.md").read_text()
    assert [title for title in GALLERY if f"| `{title}` |" not in page] == []


@pytest.mark.parametrize("title", GALLERY)
def test_a_plugin_of_the_gallery_is_a_page_that_keeps_its_contract(
    title: str, tmp_path: Path
) -> None:
    assert GALLERY[title].count("\n") <= MOST_LINES
    file = tmp_path / title
    file.write_text(GALLERY[title])
    try:
        results = list(check_plugin(str(file)))
    finally:
        sys.modules.pop(f"engine_local_{file.stem}", None)
    assert [f"{each.check}: {each.error}" for each in results if not each.passed] == []
    assert any(each.subject != str(file) for each in results)  # something of it was checked
