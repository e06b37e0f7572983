"""Guesses change no token: whatever is asked of sampling, however the engine is run, and however
bad they are.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from mixed_requests import NGRAM, counted, open_llm, run

from core import LLM, SamplingParams
from core.api import StructuredOutputsParams
from examples.demo_model.outputs import COUNT, save_outputs

DEMO = str(Path(__file__).parents[2] / "builtin_plugins" / "model_sources" / "demo" / "model")
HOSTILE = str(Path(__file__).parent / "hostile.py")
WAYS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "depth 2": {"async_scheduling": True},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "few blocks": {
        "max_model_len": 96,
        "num_gpu_blocks_override": 18,
        "kv_cache_memory_bytes": None,
    },
    "few blocks, depth 2": {
        "max_model_len": 96,
        "num_gpu_blocks_override": 18,
        "kv_cache_memory_bytes": None,
        "async_scheduling": True,
    },
    "one row": {"max_num_seqs": 1},
    "no prefix cache": {"enable_prefix_caching": False},
    "reference attention": {"attention_backend": "reference"},
}
QUICK = ("as it is", "few blocks, depth 2")


@pytest.mark.parametrize(
    "way", [pytest.param(w, marks=[] if w in QUICK else pytest.mark.slow) for w in WAYS]
)
def test_ngram_changes_no_token(expected: list[Any], way: str) -> None:
    with open_llm(NGRAM, **WAYS[way]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert total.tokens > 40
        assert sum(total.right) > 10
        if "few blocks" in way:
            assert llm.core.scheduler.num_preemptions > 0
        llm.core.scheduler.check()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["as it is", "few blocks, depth 2", "one row", "two ranks"])
def test_outputs_of_a_file_change_no_token(expected: list[Any], way: str, tmp_path: Path) -> None:
    save_outputs(Path(DEMO), tmp_path, COUNT)
    given = {"method": "suffix", "model": str(tmp_path), "adaptive": False}
    with open_llm(given, **(WAYS | {"two ranks": {"tensor_parallel_size": 2}})[way]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.right) > 200
        llm.core.scheduler.check()


@pytest.mark.parametrize(
    "ahead", [pytest.param(False, marks=pytest.mark.slow), True], ids=["depth 1", "depth 2"]
)
def test_a_hostile_speculator_costs_nothing_but_time(expected: list[Any], ahead: bool) -> None:
    """Random guesses, more than were asked for, tokens that there are not, for rows at their end."""
    speculative = {"method": "hostile", "num_speculative_tokens": 7, "adaptive": False}
    with open_llm(speculative, plugins=[HOSTILE], async_scheduling=ahead) as llm:
        assert run(llm) == expected
        assert counted(llm).tokens > 300


def test_one_that_raises_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    speculative = {"method": "raising", "num_speculative_tokens": 2, "adaptive": False}
    with open_llm(speculative, plugins=[HOSTILE]) as llm:
        output = llm.generate(
            "hello", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), use_tqdm=False
        )[0]
    assert len(output.outputs[0].token_ids) == 9
    assert not output.error
    assert [r.message for r in caplog.records if "nothing is guessed any more" in r.message]


def test_right_guesses_save_steps() -> None:
    same = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, detokenize=False)
    prompt = "one two three four five six seven eight " * 3
    steps = []
    for speculative in (None, NGRAM):
        with open_llm(speculative) as llm:
            output = llm.generate([prompt], same, use_tqdm=False)[0]
            steps.append((llm.core.num_steps, tuple(output.outputs[0].token_ids)))
    (alone, want), (guessing, tokens) = steps
    assert tokens == want
    assert guessing < 0.6 * alone
    right = output.counts["spec_decode_num_accepted_tokens"]
    assert guessing == alone - right
    assert output.counts["spec_decode_num_draft_tokens"] >= right


@pytest.mark.slow
def test_seeded_requests_have_the_same_tokens_with_guesses_and_without() -> None:
    def tokens(speculative: dict[str, Any] | None) -> list[Any]:
        with LLM(speculative_config=speculative, max_num_seqs=32, max_model_len=256) as llm:
            prompts = [f"Tell me of {i} and {i} and {i}" for i in range(100)]
            params = [
                SamplingParams(temperature=1.0, top_p=0.9, seed=seed, max_tokens=32)
                for seed in range(10)
                for _ in prompts
            ]
            return [
                o.outputs[0].token_ids for o in llm.generate(prompts * 10, params, use_tqdm=False)
            ]

    assert tokens(NGRAM) == tokens(None)


def test_grammars_hold_and_change_no_token() -> None:
    pytest.importorskip("xgrammar")
    names = ("colour", "shade", "hue")
    schemas = [
        {"type": "object", "properties": {n: {"enum": ["red", "green"]} for n in names[: 1 + i % 3]}, "required": [*names[: 1 + i % 3]]}
        for i in range(6)
    ]  # fmt: skip
    outcomes = []
    for speculative in (None, NGRAM):
        with open_llm(speculative) as llm:
            params = [
                SamplingParams(
                    temperature=i % 2,
                    seed=i,
                    max_tokens=60,
                    structured_outputs=StructuredOutputsParams(json=s),
                )
                for i, s in enumerate(schemas)
            ]
            text = 'Answer in JSON: {"colour": "red", "shade": "green", "hue": "red"}'
            outputs = llm.generate([text] * len(schemas), params, use_tqdm=False)
            outcomes.append([(o.outputs[0].text, o.outputs[0].finish_reason) for o in outputs])
    assert outcomes[0] == outcomes[1]
    named = {name.split("_")[0] for output in outputs for name in output.counts}
    assert {"constraint", "spec"} <= named, "each feature's counts are told"
    assert {reason for _, reason in outcomes[1]} == {"stop"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_a_hundred_schemas_hold(method: str) -> None:
    pytest.importorskip("xgrammar")
    kinds: list[dict[str, Any]] = [
        {"enum": ["red", "green", "blue"]},
        {"type": "boolean"},
        {"enum": [1, 22, 333]},
        {"type": "array", "items": {"enum": ["a", "bc"]}, "minItems": 1, "maxItems": 3},
    ]
    schemas = [
        {
            "type": "object",
            "properties": {
                f"field_{i}_{at}": kinds[(i + at) % len(kinds)] for at in range(1 + i % 3)
            },
            "required": [f"field_{i}_{at}" for at in range(1 + i % 3)],
            "additionalProperties": False,
        }
        for i in range(100)
    ]
    own = (
        NGRAM
        if method == "ngram"
        else {"model": DEMO, "num_speculative_tokens": 3, "adaptive": False}
    )
    # Blanks between tokens, which JSON allows without end, would use up the tokens of a few.
    params = [
        SamplingParams(
            temperature=i % 2,
            seed=i,
            max_tokens=150,
            structured_outputs=StructuredOutputsParams(json=s, disable_any_whitespace=True),
        )
        for i, s in enumerate(schemas)
    ]
    prompts = [f"Answer in JSON: {json.dumps(dict.fromkeys(s['properties']))}" for s in schemas]
    said = []
    for speculative in (None, own):
        with open_llm(speculative, max_num_seqs=16) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            said.append(
                [(output.outputs[0].text, output.outputs[0].finish_reason) for output in outputs]
            )
    assert said[0] == said[1]
    assert sum(output.counts.get("spec_decode_num_accepted_tokens", 0) for output in outputs) > 100
    for schema, (text, reason) in zip(schemas, said[1], strict=True):
        assert reason == "stop"
        validate(json.loads(text), schema)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [False, True], ids=["depth 1", "depth 2"])
def test_two_ranks_guess_alike(expected: list[Any], ahead: bool) -> None:
    with open_llm(NGRAM, tensor_parallel_size=2, async_scheduling=ahead) as llm:
        assert run(llm) == expected
        assert counted(llm).tokens > 40
