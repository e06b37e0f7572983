"""Outputs of random weights and of the demo model satisfy a hundred schemas, greedy and sampled."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from core import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams
from tests.builtin_plugins.features.structured_outputs.schemas import schemas

pytest.importorskip("xgrammar")
jsonschema = pytest.importorskip("jsonschema")
ROUNDS = 12
"""Number of seeds to try for outputs that the token limit cuts off."""


@pytest.fixture(scope="module", params=["random weights", "demo model"])
def model(request: pytest.FixtureRequest, llm: LLM, open_llm: Callable[..., LLM]) -> LLM:
    return llm if request.param == "random weights" else open_llm("demo:")


def run(llm: LLM, requests: dict[int, SamplingParams]) -> dict[int, tuple[str, str | None]]:
    """Return text and finish reason by id, joined from the pieces of each stream."""
    for index, params in requests.items():
        llm.add_request(str(index), "x", params)
    texts = dict.fromkeys(requests, "")
    reasons: dict[int, str | None] = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            assert output.error is None, output.error
            (completion,) = output.outputs
            texts[int(output.request_id)] += completion.text
            if output.finished:
                reasons[int(output.request_id)] = completion.finish_reason
    return {index: (texts[index], reasons[index]) for index in requests}


def params_of(schema: dict[str, Any], temperature: float, seed: int) -> SamplingParams:
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True)
    return SamplingParams(
        max_tokens=300,
        temperature=temperature,
        seed=seed,
        structured_outputs=form,
        output_kind=RequestOutputKind.DELTA,
    )


def check(schema: dict[str, Any], text: str) -> None:
    jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(json.loads(text))


@pytest.mark.parametrize(
    "every", [10, pytest.param(1, marks=pytest.mark.slow)], ids=["a tenth of them", "all of them"]
)
def test_outputs_satisfy_their_schema(model: LLM, every: int) -> None:
    selected = dict(list(enumerate(schemas()))[::every])
    open_ = set(selected)
    for round_ in range(ROUNDS):
        found = run(
            model, {index: params_of(selected[index], 1.0, 100 * round_ + index) for index in open_}
        )
        for index, (text, reason) in found.items():
            if reason == "stop":
                check(selected[index], text)
                open_.discard(index)
    assert open_ == set()


@pytest.mark.slow
def test_greedy_outputs_satisfy_their_schema(model: LLM) -> None:
    selected = dict(enumerate(schemas()))
    found = run(model, {index: params_of(schema, 0.0, 0) for index, schema in selected.items()})
    complete = {index: text for index, (text, reason) in found.items() if reason == "stop"}
    for index, text in complete.items():
        check(selected[index], text)
    assert len(complete) >= 80  # greedy noise may repeat a recursive type until the limit
