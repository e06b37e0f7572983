"""`engine serve --help` begins with an example and the way to fewer lines."""

from __future__ import annotations

import pytest

from core.cli.main import main


def test_help_begins_with_an_example_and_its_filter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0
    head = " ".join(capsys.readouterr().out.split()[:50])
    assert "`engine serve Qwen/Qwen3-0.6B --port 8000`" in head
    assert "--help=TEXT" in head
