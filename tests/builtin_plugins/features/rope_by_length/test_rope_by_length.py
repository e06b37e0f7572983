"""LongRoPE and dynamic NTK: equal to transformers at every length around the short context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from builtin_plugins.features.rope_by_length.scheduling import (
    NAME,
    SHORT,
    LengthScheduler,
    LengthTracker,
)
from core import LLM, SamplingParams
from core.errors import InvalidRequest
from core.step import EngineRequest, RequestDelta
from core.testing.checkpoints import make_checkpoint
from core.testing.tiny_configs import VOCAB

SHORT_CONTEXT = 48
"""`original_max_position_embeddings` of the tiny checkpoints."""
NUM_GENERATED = 12
GAP = 1e-3
LENGTHS = (1, 30, 36, 37, 40, 46, 47, 48, 49, 60)
"""Texts that stay short, that outgrow the short context, and that are long from the start."""
THREADS = str(Path(__file__).parents[2] / "executors" / "thread_ranks.py")
DRAFTS = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 1,
    "adaptive": False,
}
WAYS: dict[str, dict[str, Any]] = {
    "batched": {},
    "one by one": {"max_num_seqs": 1},
    "a budget of 16 tokens": {"max_num_batched_tokens": 16},
    "preemption": {
        "block_size": 4,
        "max_num_batched_tokens": 32,
        "num_gpu_blocks_override": 40,
        "enable_prefix_caching": False,
    },
    "drafts at depth 2": {"speculative_config": DRAFTS, "async_scheduling": True},
    "depth 2": {"async_scheduling": True},
    "2 ranks": {
        "plugins": [THREADS],
        "distributed_executor_backend": "threads",
        "tensor_parallel_size": 2,
    },
}
FACTORS = [1.0 + i / 8 for i in range(8)], [1.0 + i for i in range(8)]
LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": FACTORS[0],
    "long_factor": FACTORS[1],
    "original_max_position_embeddings": SHORT_CONTEXT,
}
LATENT_ROPE = {**LONG_ROPE, "short_factor": FACTORS[0][:4], "long_factor": FACTORS[1][:4]}
TYPES: dict[str, dict[str, Any]] = {
    "Phi3ForCausalLM": {},
    "LlamaForCausalLM": {"rope_parameters": LONG_ROPE},
    "MiniCPM3ForCausalLM": {
        "rope_parameters": LATENT_ROPE,
        "original_max_position_embeddings": SHORT_CONTEXT,
    },
}
Expected = tuple[list[int], list[int], list[float]]
"""A prompt, its greedy tokens, and their log-probabilities."""


@torch.inference_mode()
def expect(model: Any, length: int) -> Expected:
    """Return transformers' results of a prompt without near ties."""
    for seed in range(100):
        generator = torch.Generator().manual_seed(1000 * seed + length)
        half = torch.randint(0, VOCAB - 3, (-(-length // 2),), generator=generator).tolist()
        tokens = (half * 2)[:length]
        scores: list[float] = []
        gaps = []
        for _ in range(NUM_GENERATED):
            logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            best = logits.topk(2)
            gaps.append(float(best.values[0] - best.values[1]))
            tokens.append(int(best.indices[0]))
            scores.append(float(logits.log_softmax(-1)[tokens[-1]]))
        if min(gaps) >= GAP:
            return tokens[:length], tokens[length:], scores
    raise AssertionError("no prompt without a tie was found")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[Expected]]]:
    """Return a function from architecture to its checkpoint and transformers' results."""
    known: dict[str, tuple[Path, list[Expected]]] = {}

    def look_up(architecture: str) -> tuple[Path, list[Expected]]:
        if architecture not in known:
            folder = tmp_path_factory.mktemp("model")
            make_checkpoint(architecture, folder, seed=1, **TYPES[architecture])
            kind = getattr(transformers, architecture)
            model = kind.from_pretrained(folder, attn_implementation="eager").eval()
            known[architecture] = folder, [expect(model, length) for length in LENGTHS]
        return known[architecture]

    return look_up


def open_engine(folder: Path, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_threads": 1}
    defaults |= {"kv_cache_memory_bytes": 1 << 22, "log_level": "error"}
    return LLM(str(folder), **(defaults | settings))


def assert_equal(llm: LLM, expected: list[Expected], **params: Any) -> list[Any]:
    sampling = SamplingParams(
        temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0, **params
    )
    outputs = llm.generate([prompt for prompt, *_ in expected], sampling, use_tqdm=False)
    for output, (prompt, tokens, scores) in zip(outputs, expected, strict=True):
        completion = output.outputs[0]
        assert list(completion.token_ids) == tokens, f"prompt of {len(prompt)}"
        assert completion.logprobs is not None
        found = [
            each[token].logprob for each, token in zip(completion.logprobs, tokens, strict=True)
        ]
        assert found == pytest.approx(scores, abs=1e-3), f"prompt of {len(prompt)}"
    return outputs


FAST = ("a budget of 16 tokens", "drafts at depth 2")


@pytest.mark.parametrize(
    ("architecture", "way"),
    [
        pytest.param(
            architecture,
            way,
            marks=[] if architecture.startswith("Phi3") and way in FAST else pytest.mark.slow,
        )
        for architecture in TYPES
        for way in WAYS
    ],
)
def test_every_length_around_the_short_context_equals_transformers(
    architecture: str, way: str, case: Callable[[str], tuple[Path, list[Expected]]]
) -> None:
    folder, expected = case(architecture)
    with open_engine(folder, **WAYS[way]) as llm:
        assert_equal(llm, expected)
        assert_equal(llm, expected)  # the prefix cache has short and long blocks of equal tokens
        if way == "preemption":
            assert llm.core.scheduler.num_preemptions > 0


@pytest.mark.slow
def test_outgrown_requests_return_each_prompt_logprob_once(
    case: Callable[[str], tuple[Path, list[Expected]]],
) -> None:
    folder, expected = case("Phi3ForCausalLM")
    with open_engine(folder) as llm:
        outputs = assert_equal(llm, expected[:8], prompt_logprobs=0)
    assert [len(output.prompt_logprobs) for output in outputs] == list(LENGTHS[:8])


@pytest.mark.slow
@pytest.mark.parametrize("max_model_len", [SHORT_CONTEXT, 2 * SHORT_CONTEXT])
def test_dynamic_ntk_leaves_texts_of_the_original_length_unchanged(
    max_model_len: int, tmp_path: Path
) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    sizes = {"max_position_embeddings": SHORT_CONTEXT, "rope_parameters": rope}
    make_checkpoint("LlamaForCausalLM", tmp_path, seed=1, **sizes)
    kind: Any = transformers.LlamaForCausalLM
    model = kind.from_pretrained(tmp_path, attn_implementation="eager").eval()
    expected = [expect(model, length) for length in (1, 20, SHORT_CONTEXT - NUM_GENERATED)]
    with open_engine(tmp_path, max_model_len=max_model_len) as llm:
        assert_equal(llm, expected)


class BusyScheduler:
    """Adds no request while a feature uses the blocks of the one with its id."""

    def __init__(self) -> None:
        self.added: list[EngineRequest] = []
        self.in_use = True
        self.has_work = False
        self.limits = type("Limits", (), {"max_model_len": 128})

    def add(self, request: EngineRequest) -> None:
        if self.in_use and self.added:
            raise InvalidRequest("request_id", "it is in use.")
        self.added.append(request)

    def abort(self, request_id: str) -> RequestDelta:
        return RequestDelta(request_id=request_id, features={"cost": b"1"})

    def schedule(self) -> None:
        return None


class Record:
    """The scheduler's record of a request with 49 tokens."""

    def __init__(self, source: EngineRequest) -> None:
        self.source = source
        self.request_id = source.request_id
        self.features = source.features
        self.prompt_len = len(source.prompt_token_ids)
        self.tokens = [*source.prompt_token_ids, 7]
        self.num_tokens = len(self.tokens)
        self.feature_outputs: dict[str, bytes] = {}


def outgrow() -> tuple[BusyScheduler, LengthTracker, LengthScheduler]:
    """Return the parts after a request has outgrown the short context, with its blocks in use."""
    inner = BusyScheduler()
    tracker = LengthTracker(SHORT_CONTEXT)
    scheduler = LengthScheduler(inner, tracker)
    scheduler.add(
        EngineRequest(
            request_id="a",
            prompt_token_ids=list(range(SHORT_CONTEXT)),
            sampling=SamplingParams(prompt_logprobs=1),
            seed=0,
            max_tokens=9,
        )
    )
    assert not tracker.may_start(Record(inner.added[0]))
    scheduler.schedule()
    return inner, tracker, scheduler


def test_outgrown_request_waits_until_its_blocks_are_free() -> None:
    inner, tracker, scheduler = outgrow()
    assert inner.added[0].features == {NAME: SHORT}
    assert len(inner.added) == 1
    waits: bool = scheduler.has_work
    inner.in_use = False
    scheduler.schedule()
    assert (waits, scheduler.has_work) == (True, False)
    again = inner.added[1]
    assert again.output_token_ids == [7]
    assert again.features == {}
    assert again.cache_domains
    assert again.sampling.prompt_logprobs is None
    record = Record(again)
    tracker.arrived(record)
    assert record.feature_outputs == {"cost": b"1"}


def test_waiting_outgrown_request_can_be_aborted() -> None:
    inner, _, scheduler = outgrow()
    delta = scheduler.abort("a")
    assert delta is not None
    assert delta.finish_reason == "abort"
    inner.in_use = False
    scheduler.schedule()
    assert len(inner.added) == 1
