"""What every tool parser must hold to: the same result in every chunking, nothing lost, nothing raised, linear time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.testing.conformance.parsing import assert_agreement, assert_linear, assert_survival
from core.testing.parsing import Parsed, Reader

if TYPE_CHECKING:
    from core.testing.conformance import Subject


def check_plain_text_is_content(subject: Subject) -> None:
    """What has nothing of a call in it is shown as it is."""
    for text in (
        "",
        "Hello",
        "Hello, world. 1 < 2 and 3 > 2.\nTwo lines \u2014 \u00e9, \u4e2d\u6587, \U0001f600\n",
        "a",
    ):
        found = Reader(tools=subject.target).check(text)
        assert found == Parsed(content=text), f"{text!r} became {found}; it is no call."


def check_every_chunking_says_the_same(subject: Subject) -> None:
    """Whole, by token, by character, at random."""
    assert_agreement(Reader(tools=subject.target), subject.target.markers)


def check_hostile_text_never_raises(subject: Subject) -> None:
    """Whatever a model writes is content at worst."""
    assert_survival(Reader(tools=subject.target), subject.target.markers)


def check_time_grows_linearly(subject: Subject) -> None:
    """Ten times the text takes about ten times as long."""
    assert_linear(Reader(tools=subject.target), subject.target.markers)
