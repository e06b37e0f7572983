"""What every subcommand of `engine` must keep."""

from __future__ import annotations

import argparse
import io
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import TYPE_CHECKING

from core.testing.conformance.examples import examples

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
    assert isinstance(answer, bool), (
        f"{subject.entry.name}: takes_engine_options is {answer!r}; give True or False."
    )


def check_examples_print_what_they_say(subject: Subject) -> None:
    """Arguments, and what the command prints for them; one that takes the engine's options needs no
    example.
    """
    command = subject.target()
    if command.takes_engine_options:
        return
    for argv, printed in examples(subject, 'EXAMPLES = [(["--name", "Ada"], "Hello, Ada.\\n")]'):
        parser = argparse.ArgumentParser(prog=subject.entry.name)
        command.add_arguments(parser)
        out = io.StringIO()
        with redirect_stdout(out):
            status = command.run(
                SimpleNamespace(args=parser.parse_args(argv), registry=subject.registry)
            )
        assert not status, (
            f"{subject.entry.name} {' '.join(argv)}: exits with {status!r}; return 0, or raise an "
            "EngineError."
        )
        assert out.getvalue() == printed, (
            f"{subject.entry.name} {' '.join(argv)} prints {out.getvalue()!r}, not {printed!r}."
        )


def check_arguments_can_be_added_again(subject: Subject) -> None:
    """`add_arguments` only adds to the parser it is given, so that help and parsing can both call
    it.
    """
    command = subject.target()
    added = []
    for _ in range(2):
        parser = argparse.ArgumentParser(add_help=False)
        command.add_arguments(parser)
        added.append(parser.format_help())
    assert added[0] == added[1], (
        f"{subject.entry.name}: the second call of add_arguments added other arguments."
    )
