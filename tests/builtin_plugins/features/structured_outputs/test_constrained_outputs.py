"""Constrained outputs of a random model: alone, in a batch, async, preempted, resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from core import LLM, RequestOutput, SamplingParams, StructuredOutputsParams
from core.api import ConfigError, InvalidRequest

pytest.importorskip("xgrammar")

CHOICES = ["yes", 'no "thanks"', "été\n"]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
}


def is_person(text: str) -> bool:
    value = json.loads(text)
    return set(value) == {"name", "age"} and len(value["name"]) <= 8 and 0 <= value["age"] <= 150


EXAMPLES: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"json": PERSON, "disable_any_whitespace": True}, is_person),
    ({"json": json.dumps({**PERSON, "additionalProperties": False})}, is_person),
    ({"regex": r"\d{3}-[a-z]{1,9}@x\.com"}, re.compile(r"\d{3}-[a-z]{1,9}@x\.com").fullmatch),
    ({"choice": CHOICES}, CHOICES.__contains__),
    ({"grammar": 'root ::= "(" root ")" | [0-9]'}, re.compile(r"\(*[0-9]\)*").fullmatch),
]


def constrained(temperature: float = 1.0, seed: int = 0, **given: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=100,
        temperature=temperature,
        seed=seed,
        structured_outputs=StructuredOutputsParams(**given),
    )


def texts(outputs: list[RequestOutput]) -> list[str]:
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs[0].text for output in outputs]


def complete(outputs: list[RequestOutput]) -> list[str]:
    """Return the texts of the outputs that were not cut off."""
    return [text for output, text in zip(outputs, texts(outputs), strict=True) if not cut(output)]


def cut(output: RequestOutput) -> bool:
    return output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(("given", "matches"), EXAMPLES, ids=lambda value: str(value)[:20])
def test_constrained_outputs_match_their_constraint(
    llm: LLM, given: dict[str, Any], matches: Callable[[str], Any]
) -> None:
    params = [constrained(0.0, **given), *(constrained(1.0, seed, **given) for seed in range(3))]
    found = complete(llm.generate(["x"] * len(params), params, use_tqdm=False))
    assert found
    assert [text for text in found if not matches(text)] == []


def test_unconstrained_rows_are_unchanged(llm: LLM) -> None:
    free = SamplingParams(max_tokens=20, temperature=0.0)
    alone = texts(llm.generate(["abc"], free, use_tqdm=False))
    among = texts(
        llm.generate(["x", "abc", "y"], [constrained(**EXAMPLES[0][0]), free, free], use_tqdm=False)
    )
    assert among[1] == alone[0]


def test_async_scheduling_gives_identical_tokens(llm: LLM, open_llm: Callable[..., LLM]) -> None:
    params = [constrained(1.0, seed, **given) for seed, (given, _) in enumerate(EXAMPLES)]
    params.insert(2, SamplingParams(max_tokens=30, temperature=1.0, seed=9))
    ahead = open_llm(async_scheduling=True)
    prompts = ["one", "two", "three", "four", "five", "six"]
    assert texts(ahead.generate(prompts, params, use_tqdm=False)) == texts(
        llm.generate(prompts, params, use_tqdm=False)
    )


def test_preempted_requests_resume_in_their_grammar(llm: LLM, open_llm: Callable[..., LLM]) -> None:
    params = [constrained(1.0, seed, json=PERSON, disable_any_whitespace=True) for seed in range(4)]
    tight = open_llm(num_gpu_blocks_override=8, max_model_len=100)
    prompts = [f"a longer prompt {i}" for i in range(4)]
    outputs = tight.generate(prompts, [p.clone(max_tokens=50) for p in params], use_tqdm=False)
    assert tight.core.scheduler.num_preemptions > 0
    roomy = llm.generate(prompts, [p.clone(max_tokens=50) for p in params], use_tqdm=False)
    assert texts(outputs) == texts(roomy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"json": {"type": "objekt"}}, "structured_outputs.json: .*objekt"),
        ({"json": {"not": {}}}, "structured_outputs.json: xgrammar does not support not"),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"regex": "("}, "structured_outputs.regex: .*unclosed group"),
        ({"grammar": "nonsense"}, "structured_outputs.grammar: "),
        (
            {"regex": "((((a)*)*)*)*"},
            "structured_outputs.regex: contains a nested repetition that may be empty",
        ),
        (
            {"json": {"$ref": "http://a.b/c.json"}},
            "structured_outputs.json: got the .ref .*to another document",
        ),
    ],
)
def test_unsupported_constraints_are_rejected(
    open_llm: Callable[..., LLM], given: Any, message: str
) -> None:
    llm = open_llm(structured_outputs_config={"backend": "xgrammar"})
    with pytest.raises(InvalidRequest, match=message):
        llm.generate("x", constrained(**given))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "lm-format-enforcer",
            "The backend 'lm-format-enforcer' is installed separately: "
            "`pip install plugins/engine-lm-",
        ),
        ("nope", "unknown grammar backend 'nope'; available: llguidance, xgrammar\\.$"),
    ],
)
def test_missing_backend_names_its_distribution(
    open_llm: Callable[..., LLM], name: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_llm(plugins=["grammar_xgrammar"], structured_outputs_config={"backend": name})


def test_equal_constraints_are_compiled_once(open_llm: Callable[..., LLM]) -> None:
    llm = open_llm()
    llm.generate(["x"] * 4, constrained(choice=["a", "b"]), use_tqdm=False)
    pool = llm._frontend.registry.shared("structured_outputs", lambda: None)
    # An unused grammar process may end between check and output on a busy machine.
    assert 1 <= pool.num_compiled < 4


def test_empty_mask_fails_its_request_only(llm: LLM) -> None:
    params = [constrained(choice=["a"]).clone(allowed_token_ids=[5]), SamplingParams(max_tokens=3)]
    failed, fine = llm.generate(["x", "x"], params, use_tqdm=False)
    assert "structured_outputs" in (failed.error or "")
    assert fine.error is None


def test_unknown_reasoning_parser_is_rejected_at_startup(
    open_llm: Callable[..., LLM],
) -> None:
    config = {"reasoning_parser": "qwen33"}
    with pytest.raises(
        ConfigError, match=r"structured-outputs-config\.reasoning_parser: .*'qwen33'.*did you mean"
    ):
        open_llm(structured_outputs_config=config)
