"""Every one of a hundred schemas holds for outputs of random weights and of the demo model: greedy,
hot, streamed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from schemas import schemas

from core import LLM, RequestOutputKind, SamplingParams, StructuredOutputsParams

pytest.importorskip("xgrammar")
jsonschema = pytest.importorskip("jsonschema")
ROUNDS = 12
"""Fresh seeds for outputs that the bound of tokens has cut off: those are not complete, whatever
they are.
"""


@pytest.fixture(scope="module", params=["random weights", "demo model"])
def model(request: pytest.FixtureRequest, llm: LLM, open_llm: Callable[..., LLM]) -> LLM:
    return llm if request.param == "random weights" else open_llm("demo:")


def run(llm: LLM, asked: dict[int, SamplingParams]) -> dict[int, tuple[str, str | None]]:
    """Return text and finish reason by id, joined from the pieces of each stream."""
    for index, params in asked.items():
        llm.add_request(str(index), "x", params)
    texts = dict.fromkeys(asked, "")
    reasons: dict[int, str | None] = {}
    while llm.has_unfinished_requests():
        for output in llm.step():
            assert output.error is None, output.error
            (completion,) = output.outputs
            texts[int(output.request_id)] += completion.text
            if output.finished:
                reasons[int(output.request_id)] = completion.finish_reason
    return {index: (texts[index], reasons[index]) for index in asked}


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
    wanted = dict(list(enumerate(schemas()))[::every])
    open_ = set(wanted)
    for round_ in range(ROUNDS):
        found = run(
            model, {index: params_of(wanted[index], 1.0, 100 * round_ + index) for index in open_}
        )
        for index, (text, reason) in found.items():
            if reason == "stop":
                check(wanted[index], text)
                open_.discard(index)
    assert open_ == set()


@pytest.mark.slow
def test_greedy_outputs_satisfy_their_schema(model: LLM) -> None:
    wanted = dict(enumerate(schemas()))
    found = run(model, {index: params_of(schema, 0.0, 0) for index, schema in wanted.items()})
    complete = {index: text for index, (text, reason) in found.items() if reason == "stop"}
    for index, text in complete.items():
        check(wanted[index], text)
    assert len(complete) >= 80  # greedy noise may repeat itself in a recursive type until the bound
