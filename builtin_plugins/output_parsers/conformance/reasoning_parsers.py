"""What every reasoning parser must hold to: the same result in every chunking, nothing raised,
linear time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from builtin_plugins.output_parsers.conformance.chunking import (
    assert_agreement,
    assert_linear,
    assert_survival,
)
from builtin_plugins.output_parsers.contract import ReasoningFormat
from builtin_plugins.output_parsers.testing import Reader
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = ReasoningFormat


def check_plain_text_is_returned(subject: Subject) -> None:
    """What has no marker in it is reasoning or content, and all of it is there; a start tag of the
    prompt's may be too.
    """
    fronts = ("", *subject.target.markers)
    for text in (
        "",
        "Hello",
        "Hello, world. 1 < 2 and 3 > 2.\nTwo lines \u2014 \u00e9, \u4e2d\u6587, \U0001f600",
    ):
        found = Reader(reasoning=subject.target).check(text)
        text_found = found.reasoning + found.content
        assert text_found in [front + text for front in fronts], (
            f"{text!r} became {found}; something was lost or invented."
        )


def check_examples_are_read_as_they_say(subject: Subject) -> None:
    """A text, the thoughts in it and the content, in every chunking, with markers as text and as
    special tokens.
    """
    for text, reasoning, content in examples(
        subject, 'EXAMPLES = [("<think>Hm.</think>Yes.", "Hm.", "Yes.")]'
    ):
        for special in (frozenset[str](), frozenset(subject.target.markers)):
            found = Reader(reasoning=subject.target, special=special).check(text, count=20)
            parsed = (found.reasoning, found.content)
            assert parsed == (reasoning, content), (
                f"{text!r} is parsed as {parsed}, its example says {(reasoning, content)}."
            )


def check_every_chunking_says_the_same(subject: Subject) -> None:
    """Whole, by token, by character, at random."""
    assert_agreement(Reader(reasoning=subject.target), subject.target.markers)


def check_hostile_text_never_raises(subject: Subject) -> None:
    """Any model output is returned, at worst unchanged."""
    assert_survival(Reader(reasoning=subject.target), subject.target.markers)


def check_time_grows_linearly(subject: Subject) -> None:
    """Ten times the text takes about ten times as long."""
    assert_linear(Reader(reasoning=subject.target), subject.target.markers)
