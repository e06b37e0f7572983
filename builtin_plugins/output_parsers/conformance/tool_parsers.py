"""What every tool parser must hold to: the same result in every chunking, nothing lost, nothing
raised, linear time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builtin_plugins.output_parsers.conformance.chunking import (
    assert_agreement,
    assert_linear,
    assert_survival,
)
from builtin_plugins.output_parsers.contract import ToolFormat
from builtin_plugins.output_parsers.testing import Parsed, Reader
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = ToolFormat


def check_plain_text_is_content(subject: Subject) -> None:
    """Text without a call is returned unchanged."""
    for text in (
        "",
        "Hello",
        "Hello, world. 1 < 2 and 3 > 2.\nTwo lines \u2014 \u00e9, \u4e2d\u6587, \U0001f600\n",
        "a",
    ):
        found = Reader(tools=subject.target).check(text)
        assert found == Parsed(content=text), f"{text!r} became {found}; it is no call."


def check_examples_are_read_as_they_say(subject: Subject) -> None:
    """A text and the calls in it, in every chunking, with markers as text and as special tokens."""
    form = """EXAMPLES = [('<call>f{"a": 1}</call>', [("f", {"a": 1})])]"""
    for text, calls in examples(subject, form):
        for special in (frozenset[str](), frozenset(subject.target.markers)):
            found = Reader(tools=subject.target, special=special).check(text, count=20)
            parsed = [(name, arguments) for name, arguments in found.calls]
            assert parsed == list(calls), (
                f"{text!r} has the calls {parsed}, its example says {calls}; the rest is {found}."
            )


def check_examples_stand_between_texts(subject: Subject) -> None:
    """What stands before a call is content, and two calls in a text are two."""
    for text, calls in examples(subject, ""):
        found = Reader(tools=subject.target).check(f"Well.\n{text}", count=4)
        assert found.content.strip() == "Well.", (
            f"{text!r} after 'Well.' leaves the content {found.content!r}."
        )
        assert list(found.calls) == list(calls), (
            f"{text!r} after 'Well.' has the calls {found.calls}, not {calls}."
        )


def check_every_chunking_says_the_same(subject: Subject) -> None:
    """Whole, by token, by character, at random."""
    assert_agreement(Reader(tools=subject.target), subject.target.markers)


def check_hostile_text_never_raises(subject: Subject) -> None:
    """Whatever a model writes is content at worst."""
    assert_survival(Reader(tools=subject.target), subject.target.markers)


def check_time_grows_linearly(subject: Subject) -> None:
    """Ten times the text takes about ten times as long."""
    assert_linear(Reader(tools=subject.target), subject.target.markers)
