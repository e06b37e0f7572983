"""Speculation changes no tokens, for all sampling parameters, engine options and bad drafts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate

from core import LLM, SamplingParams
from core.api.sampling import StructuredOutputsParams
from core.testing.invariants import check_scheduler
from examples.demo_model.outputs import COUNT, save_outputs
from tests.builtin_plugins.speculators.mixed_requests import NGRAM, counted, open_llm, run

DEMO = str(Path(__file__).parents[3] / "builtin_plugins" / "model_sources" / "demo" / "model")
FAULTY = str(Path(__file__).parent / "faulty_speculators.py")
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
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
QUICK = ("default", "few blocks, depth 2")


@pytest.mark.parametrize(
    "variant", [pytest.param(w, marks=[] if w in QUICK else pytest.mark.slow) for w in VARIANTS]
)
def test_ngram_changes_no_tokens(expected: list[Any], variant: str) -> None:
    with open_llm(NGRAM, **VARIANTS[variant]) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert total.num_draft_tokens > 40
        assert sum(total.accepted_per_position) > 10
        if "few blocks" in variant:
            assert llm.core.scheduler.num_preemptions > 0
        check_scheduler(llm.core.scheduler)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["default", "few blocks, depth 2", "one row", "two ranks"])
def test_suffix_outputs_file_changes_no_tokens(
    expected: list[Any], variant: str, tmp_path: Path
) -> None:
    save_outputs(Path(DEMO), tmp_path, COUNT)
    config = {"method": "suffix", "model": str(tmp_path), "adaptive": False}
    with open_llm(
        config, **(VARIANTS | {"two ranks": {"tensor_parallel_size": 2}})[variant]
    ) as llm:
        assert run(llm) == expected
        total = counted(llm)
        assert sum(total.accepted_per_position) > 200
        check_scheduler(llm.core.scheduler)


@pytest.mark.parametrize(
    "is_async", [pytest.param(False, marks=pytest.mark.slow), True], ids=["depth 1", "depth 2"]
)
def test_invalid_draft_tokens_change_no_tokens(expected: list[Any], is_async: bool) -> None:
    """Random draft tokens, too many, and outside the vocabulary."""
    speculative = {"method": "hostile", "num_speculative_tokens": 7, "adaptive": False}
    with open_llm(speculative, plugins=[FAULTY], async_scheduling=is_async) as llm:
        assert run(llm) == expected
        assert counted(llm).num_draft_tokens > 300


def test_raising_speculator_is_disabled(caplog: pytest.LogCaptureFixture) -> None:
    speculative = {"method": "raising", "num_speculative_tokens": 2, "adaptive": False}
    with open_llm(speculative, plugins=[FAULTY]) as llm:
        output = llm.generate(
            "hello", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True), use_tqdm=False
        )[0]
    assert len(output.outputs[0].token_ids) == 9
    assert not output.error
    assert [r.message for r in caplog.records if "speculation is disabled" in r.message]


def test_accepted_tokens_save_steps() -> None:
    same = SamplingParams(temperature=0, max_tokens=80, ignore_eos=True, detokenize=False)
    prompt = "one two three four five six seven eight " * 3
    steps = []
    for speculative in (None, NGRAM):
        with open_llm(speculative) as llm:
            output = llm.generate([prompt], same, use_tqdm=False)[0]
            steps.append((llm.core.num_steps, tuple(output.outputs[0].token_ids)))
    (plain_steps, expected), (speculative_steps, tokens) = steps
    assert tokens == expected
    assert speculative_steps < 0.6 * plain_steps
    num_accepted = output.counts["spec_decode_num_accepted_tokens"]
    assert speculative_steps == plain_steps - num_accepted
    assert output.counts["spec_decode_num_draft_tokens"] >= num_accepted


@pytest.mark.slow
def test_seeded_requests_match_without_speculation() -> None:
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


def test_grammars_hold_with_speculation() -> None:
    pytest.importorskip("xgrammar")
    names = ("colour", "shade", "hue")
    schemas = [
        {
            "type": "object",
            "properties": {n: {"enum": ["red", "green"]} for n in names[: 1 + i % 3]},
            "required": [*names[: 1 + i % 3]],
        }
        for i in range(6)
    ]
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
    assert {"constraint", "spec"} <= named, "counts of both features are reported"
    assert {reason for _, reason in outcomes[1]} == {"stop"}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ngram", "draft_model"])
def test_hundred_schemas_hold_with_speculation(method: str) -> None:
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
    # Unlimited JSON whitespace would exhaust max_tokens of some requests.
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
    results = []
    for speculative in (None, own):
        with open_llm(speculative, max_num_seqs=16) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            results.append(
                [(output.outputs[0].text, output.outputs[0].finish_reason) for output in outputs]
            )
    assert results[0] == results[1]
    assert sum(output.counts.get("spec_decode_num_accepted_tokens", 0) for output in outputs) > 100
    for schema, (text, reason) in zip(schemas, results[1], strict=True):
        assert reason == "stop"
        validate(json.loads(text), schema)


@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True], ids=["depth 1", "depth 2"])
def test_tp2_drafts_match_tp1(expected: list[Any], is_async: bool) -> None:
    with open_llm(NGRAM, tensor_parallel_size=2, async_scheduling=is_async) as llm:
        assert run(llm) == expected
        assert counted(llm).num_draft_tokens > 40
