"""What every subcommand of `engine` must keep."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_help_is_one_line(subject: Subject) -> None:
    """The help is what `engine COMMAND --help` begins with."""
    text = subject.target().help
    assert isinstance(text, str), f"{subject.entry.name}: help is {text!r}; give one sentence."
    assert text.strip(), f"{subject.entry.name}: help is empty; give one sentence."
    assert "\n" not in text, f"{subject.entry.name}: help has several lines; keep the first."


def check_says_whether_it_takes_engine_options(subject: Subject) -> None:
    """True adds every flag of the engine to its parser, False none; nothing in between."""
    answer = subject.target().takes_engine_options
    assert isinstance(answer, bool), f"{subject.entry.name}: takes_engine_options is {answer!r}; give True or False."


def check_arguments_can_be_added_again(subject: Subject) -> None:
    """`add_arguments` only adds to the parser it is given, so that help and parsing can both ask."""
    command = subject.target()
    added = []
    for _ in range(2):
        parser = argparse.ArgumentParser(add_help=False)
        command.add_arguments(parser)
        added.append(parser.format_help())
    assert added[0] == added[1], f"{subject.entry.name}: the second call of add_arguments added other arguments."
