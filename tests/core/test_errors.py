"""Suggestions for misspelt names, and `run_all`."""

from __future__ import annotations

import difflib
from functools import partial

import pytest

from core.errors import did_you_mean, run_all

ARCHITECTURES = [
    "LlamaForCausalLM",
    "MambaForCausalLM",
    "XGLMForCausalLM",
    "PLBartForConditionalGeneration",
]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("LamaForCausalLM", "LlamaForCausalLM"),
        ("LLaMAForCausalLM", "LlamaForCausalLM"),
        ("LlamaForCasualLM", "LlamaForCausalLM"),
        ("PLBARTForConditionalGeneration", "PLBartForConditionalGeneration"),
    ],
)
def test_misspelt_architecture_suggests_the_right_one(written: str, meant: str) -> None:
    assert did_you_mean(written, ARCHITECTURES) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    "written", ["LlavaForConditionalGeneration", "BeamForCausalLM", "ForCausalLM"]
)
def test_unrelated_architecture_gets_no_suggestion(written: str) -> None:
    assert did_you_mean(written, ARCHITECTURES) == ""


def test_common_start_alone_gives_no_suggestion() -> None:
    known = ["--enable-prefix-caching", "--disable-log-stats"]
    assert did_you_mean("--enable-reasoning", known) == ""
    assert (
        did_you_mean("--enable-prefix-cahing", known) == "; did you mean '--enable-prefix-caching'?"
    )
    assert did_you_mean("--disable-log-stat", known) == "; did you mean '--disable-log-stats'?"
    assert did_you_mean("--url", ["--journal"]) == ""  # dashes are no similarity
    assert did_you_mean("--journl", ["--journal"]) == "; did you mean '--journal'?"


def test_common_suffix_alone_gives_no_suggestion() -> None:
    assert did_you_mean("--guided-decoding-backend", ["--kv-offloading-backend"]) == ""


def test_name_far_longer_than_all_known_ones_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compare(*_: object, **__: object) -> None:
        raise AssertionError("compared")

    monkeypatch.setattr(difflib, "get_close_matches", compare)
    assert did_you_mean("Llama" * 100_000, ARCHITECTURES) == ""
    with pytest.raises(AssertionError, match="compared"):
        did_you_mean("Llama" * 10, ARCHITECTURES)


def test_run_all_makes_all_calls_and_raises_the_first_error() -> None:
    made: list[str] = []

    def call(name: str, error: Exception | None = None) -> None:
        made.append(name)
        if error is not None:
            raise error

    first = OSError("no room")
    calls = [
        partial(call, "a"),
        partial(call, "b", first),
        partial(call, "c"),
        partial(call, "d", KeyError("x")),
    ]
    with pytest.raises(OSError, match="no room") as caught:
        run_all(calls)
    assert made == ["a", "b", "c", "d"]
    assert caught.value is first
    assert first.__notes__ == ["Then KeyError: 'x'"]
    run_all(calls[:1])
