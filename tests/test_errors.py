"""What is taken for a misspelling, and what is not."""

from __future__ import annotations

from functools import partial

import pytest

from core.errors import did_you_mean, make_all

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
def test_a_misspelt_architecture_names_the_one_that_was_meant(written: str, meant: str) -> None:
    assert did_you_mean(written, ARCHITECTURES) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    "written", ["LlavaForConditionalGeneration", "BeamForCausalLM", "ForCausalLM"]
)
def test_a_model_of_another_family_is_no_misspelling(written: str) -> None:
    assert did_you_mean(written, ARCHITECTURES) == ""


def test_names_that_end_alike_are_not_near() -> None:
    assert did_you_mean("--guided-decoding-backend", ["--kv-offloading-backend"]) == ""


def test_all_calls_are_made_and_the_first_error_is_raised() -> None:
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
    with pytest.raises(OSError, match="no room") as told:
        make_all(calls)
    assert made == ["a", "b", "c", "d"]
    assert told.value is first
    assert first.__notes__ == ["Then KeyError: 'x'"]
    make_all(calls[:1])
