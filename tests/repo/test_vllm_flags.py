"""Every flag of `vllm serve` is served, or refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from core.cli.flags import FlagParser, add_flags, parse_flags
from core.config.build import assemble
from core.config.fields import FieldTable, is_switch
from core.errors import ConfigError
from scripts.generate_docs import builtins
from scripts.vllm_page import FLAGS, STARTUP, vllm_page

SOURCE: dict[str, Any] = json.loads(FLAGS.read_text(encoding="utf-8"))
THEIRS: dict[str, Any] = SOURCE["flags"]
TABLE = FieldTable(builtins().options())
OPTIONS = [name for name in THEIRS if name not in STARTUP]


def parse(*argv: str) -> Any:
    parser = FlagParser(prog="engine serve", add_help=False)
    add_flags(parser, TABLE)
    return assemble(TABLE, [parse_flags(parser, TABLE, argv)[1]])[0]


def answer(*argv: str) -> str:
    """Return the error of some arguments; empty if they are accepted."""
    try:
        parse(*argv)
    except ConfigError as error:
        return str(error)
    return ""


def test_page_counts_every_flag() -> None:
    page = vllm_page(TABLE)
    assert SOURCE["version"] == "0.33.0"
    assert "of 321 flags " in page
    assert all(f"`--{name.replace('_', '-')}`" in page for name in THEIRS)


@pytest.mark.parametrize("name", OPTIONS)
def test_no_spelling_of_vllm_is_an_unknown_flag(name: str) -> None:
    values = [] if is_switch(TABLE.by_name[name].type) else ["1"]
    answers = [answer(spelling, *values) for spelling in THEIRS[name]["spellings"]]
    assert not any(text.startswith("unknown flag") for text in answers), answers


def test_defaults_of_vllm_are_accepted_by_flags_that_are_not_served() -> None:
    defaults = {name: THEIRS[name]["default"] for name in OPTIONS if TABLE.by_name[name].refuse}
    differing = {
        name: (default, TABLE.by_name[name].default)
        for name, default in defaults.items()
        if TABLE.by_name[name].refuses(default) and (default or TABLE.by_name[name].default)
    }
    assert differing == {}
