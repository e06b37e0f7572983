"""Help texts and the reference page, from the source of the sections."""

from __future__ import annotations

import subprocess
import sys

from builtin_plugins.commands.config.reference_page import reference_page
from core.cli.field_docs import section_docs
from core.config.fields import FieldTable, Option


def test_every_field_and_section_has_a_description() -> None:
    docs = section_docs()
    table = FieldTable()
    missing = [
        name for name in [*table.by_name, *(f"[{s}]" for s in table.sections)] if not docs.get(name)
    ]
    assert missing == []


def test_page_lists_all_accepted_fields_and_options() -> None:
    table = FieldTable(
        [
            ("web", Option("port", int, 8000, "Port | door.")),
            ("planned", Option("enable_lora", bool, False, "LoRA", refuse="missing")),
        ]
    )
    page = reference_page(table)
    assert all(f"`{found.flag}`" in page for found in table.by_name.values() if not found.refuse)
    assert "## Plugin `web`" in page
    assert r"Port \| door." in page
    assert "enable_lora" not in page


def test_module_prints_the_page() -> None:
    command = [sys.executable, "-m", "builtin_plugins.commands.config.reference_page"]
    page = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert page == reference_page(FieldTable())
