"""The plugin loads, imports little, and passes the conformance suite of its kind."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from core import LLM, RequestOutput, SamplingParams
from core.api import InvalidRequest
from core.testing import conformance
from core.testing.plugins import load_plugins

MODULE = "engine_token_sets.plugin"


def test_token_sets_adds_a_logits_processor() -> None:
    entries = conformance.entries_of_named_plugins(load_plugins(MODULE))
    assert {registered.kind for registered in entries} == {"logits_processors"}


@pytest.mark.parametrize("case", conformance.cases(MODULE), ids=str)
def test_token_sets_passes_conformance_suite(case: conformance.Case) -> None:
    case()


def test_discovery_imports_no_torch() -> None:
    code = f"import sys, {MODULE}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        "scripted:", plugins=[MODULE], max_model_len=128, num_gpu_blocks_override=64
    ) as engine:
        yield engine


def answer(llm: LLM, sets: dict[str, Any] | None) -> RequestOutput:
    params = SamplingParams(
        max_tokens=3, temperature=0, extra_args={"token_sets": sets} if sets else None
    )
    return llm.generate("abc", params, use_tqdm=False)[0]


def test_forbidden_token_is_never_generated(llm: LLM) -> None:
    assert answer(llm, None).outputs[0].text == "abc"
    assert ord("b") not in answer(llm, {"forbid": [ord("b")]}).outputs[0].token_ids


def test_boosted_token_is_generated(llm: LLM) -> None:
    boosted = answer(llm, {"boost": {"tokens": [ord("z")], "by": 1e6}})
    assert boosted.outputs[0].text == "zzz"


def test_forbidden_tokens_take_precedence(llm: LLM) -> None:
    both = answer(llm, {"forbid": [ord("z")], "boost": {"tokens": [ord("z"), ord("y")], "by": 1e6}})
    assert both.outputs[0].text == "yyy"


def test_other_rows_are_unchanged(llm: LLM) -> None:
    plain = SamplingParams(max_tokens=3, temperature=0)
    boost = plain.clone(extra_args={"token_sets": {"boost": {"tokens": [ord("z")], "by": 1e6}}})
    texts = [
        o.outputs[0].text for o in llm.generate(["abc", "abc"], [boost, plain], use_tqdm=False)
    ]
    assert texts == ["zzz", "abc"]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"forbit": [1]}, "must hold `forbid` or `boost` and nothing else"),
        ({"forbid": [10**9]}, "extra_args.token_sets.forbid: holds 1000000000; token ids are 0 to"),
        (
            {"boost": {"tokens": [1], "by": "much"}},
            "extra_args.token_sets.boost.by: must be a finite number",
        ),
    ],
)
def test_invalid_token_sets_are_rejected(llm: LLM, sets: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        answer(llm, sets)
    assert answer(llm, None).outputs[0].text == "abc"
