"""LongRoPE and dynamic NTK: equal to transformers at every length around the short context."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from builtin_plugins.features.rope_by_length.scheduling import (
    NAME,
    SHORT,
    LengthScheduler,
    LengthTracker,
)
from core import SamplingParams
from core.errors import InvalidRequest
from core.step import EngineRequest, RequestDelta
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.rope_by_length.texts import (
    DRAFTS,
    LENGTHS,
    NUM_GENERATED,
    SHORT_CONTEXT,
    TYPES,
    Expected,
    assert_equal,
    expect,
    open_engine,
)

THREADS = str(Path(__file__).parents[2] / "executors" / "thread_ranks.py")
RANKS = {
    "plugins": [THREADS],
    "distributed_executor_backend": "threads",
    "tensor_parallel_size": 2,
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
    "2 ranks": RANKS,
    "drafts on 2 ranks": {"speculative_config": DRAFTS, **RANKS},
}
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
