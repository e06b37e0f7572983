"""Arguments for plugins: those declared are checked, those misspelt are refused, others are
nobody's business.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from core.errors import InvalidRequest
from core.types import SamplingParams
from core.types.asked import check_extra_args

DECLARES = SimpleNamespace(params=(), extra_args={"loudness": int})
READS_ANYTHING = SimpleNamespace(params=())


def check(**given: object) -> None:
    check_extra_args(SamplingParams(extra_args=given), [READS_ANYTHING, DECLARES])


def test_what_is_declared_or_like_nothing_declared_passes() -> None:
    check(loudness=3)
    check(whatever="x")


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"^extra_args.loudnes: no plugin declares it; did you mean 'loudness'\?$",
    ):
        check(loudnes=3)


def test_a_value_of_another_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^extra_args.loudness: expected `int`, got `str`\.$"):
        check(loudness="3")
