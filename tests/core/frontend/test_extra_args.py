"""`extra_args`: declared names are type-checked, misspelt ones refused, others pass."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from core.errors import InvalidRequest
from core.types import SamplingParams, plugin_params
from core.types.plugin_params import check_extra_args

DECLARES = SimpleNamespace(params=(), extra_args={"loudness": int})
READS_ANYTHING = SimpleNamespace(params=())


def check(**given: object) -> None:
    check_extra_args(SamplingParams(extra_args=given), [READS_ANYTHING, DECLARES])


def test_declared_and_unrelated_names_pass() -> None:
    check(loudness=3)
    check(whatever="x")


def test_misspelt_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(
        InvalidRequest,
        match=r"^extra_args.loudnes: no plugin declares it; did you mean 'loudness'\?$",
    ):
        check(loudnes=3)


def test_value_of_a_wrong_type_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^extra_args.loudness: expected `int`, got `str`\.$"):
        check(loudness="3")


def test_near_misses_are_looked_for_among_the_first_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []
    monkeypatch.setattr(plugin_params, "did_you_mean", lambda name, _: compared.append(name) or "")
    check_extra_args(SamplingParams(extra_args={f"k{i}": 1 for i in range(30_000)}), [DECLARES])
    assert len(compared) == 100
