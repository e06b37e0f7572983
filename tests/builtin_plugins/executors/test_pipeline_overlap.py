"""Pipeline stages compute different steps at the same time, and give the tokens of one rank."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from builtin_plugins.platforms.cpu.platform import CpuPlatform
from core import LLM, SamplingParams
from core.testing.checkpoints import make_checkpoint
from tests.core.scheduler.fake_worker import make_request
from tests.timeouts import TIMEOUT_S

THREADS = str(Path(__file__).parent / "thread_ranks.py")
GREEDY = SamplingParams(temperature=0)
SEEDED = SamplingParams(temperature=0.9, top_p=0.95, repetition_penalty=1.2)
MAX_TOKENS = 16
PROMPTS = [[(7 * i + 3 * j) % 200 for j in range(length)] for i, length in enumerate((30, 2, 17))]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("LlamaForCausalLM", tmp_path_factory.mktemp("llama"), seed=2)


def open_engine(folder: Path, tensor: int = 1, pipeline: int = 1, **settings: Any) -> LLM:
    defaults: dict[str, Any] = {
        "tensor_parallel_size": tensor,
        "pipeline_parallel_size": pipeline,
        "distributed_executor_backend": "threads" if tensor * pipeline > 1 else None,
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 6,
        "num_threads": 1,
        "kv_cache_memory_bytes": 1 << 22,
        "log_level": "error",
        "plugins": [THREADS],
    }
    return LLM(str(folder), **(defaults | settings))


def add(llm: LLM, name: str, prompt: int, max_tokens: int = MAX_TOKENS) -> None:
    """Add a request; those of odd prompts are sampled."""
    sampling = SEEDED if prompt % 2 else GREEDY
    tokens = PROMPTS[prompt]
    request = make_request(name, tokens, max_tokens, sampling=sampling, eos_token_ids=())
    llm.core.add([request])


def collect(llm: LLM, outputs: dict[str, list[int]]) -> None:
    for delta in llm.core.step():
        assert delta.error is None
        outputs.setdefault(delta.request_id, []).extend(delta.token_ids)


def run(llm: LLM) -> dict[str, list[int]]:
    outputs: dict[str, list[int]] = {}
    while llm.core.has_work:
        collect(llm, outputs)
    return outputs


@pytest.fixture(scope="module")
def expected(llama: Path) -> list[list[int]]:
    """Return the tokens of each prompt alone, on one rank."""
    with open_engine(llama) as llm:
        for prompt in range(len(PROMPTS)):
            add(llm, str(prompt), prompt)
        outputs = run(llm)
    return [outputs[str(prompt)] for prompt in range(len(PROMPTS))]


class OverlapGate:
    """Lets a stage end a step only when the stage before it computes a later one."""

    def __init__(self) -> None:
        self.last_step = 0
        """Last step to hold; 0: none."""
        self.waiting_stage: int | None = None
        """A stage that did not start a step before the end of another; ends all waiting."""
        self._changed = threading.Condition()
        self._computed: Counter[int] = Counter()
        """Steps by stage, of this round."""

    def start(self, last_step: int) -> None:
        """Start a round of steps."""
        self.last_step = last_step
        self._computed.clear()

    def end_step(self, stage: int) -> None:
        with self._changed:
            self._computed[stage] += 1
            self._changed.notify_all()
            step = self._computed[stage]
            if stage == 0 or not 1 < step < self.last_step:
                return  # the first step has all prompts; no step follows the last one
            if self.waiting_stage is None and not self._changed.wait_for(
                lambda: self._computed[stage - 1] > step, TIMEOUT_S
            ):
                self.waiting_stage = stage - 1


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> OverlapGate:
    """Return the gate of all stages."""
    made = OverlapGate()
    wrap = CpuPlatform.wrap

    def wrap_with_gate(platform: CpuPlatform, model: Any, sizes: Any) -> Callable[[Any], Any]:
        forward = wrap(platform, model, sizes)
        stage = model._pipeline.rank

        def step(batch: Any) -> Any:
            hidden = forward(batch)
            made.end_step(stage)
            return hidden

        return step

    monkeypatch.setattr(CpuPlatform, "wrap", wrap_with_gate)
    return made


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("pipeline", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_stages_compute_different_steps_at_once(
    pipeline: int, async_scheduling: bool, llama: Path, expected: list[list[int]], gate: OverlapGate
) -> None:
    """Only the first step, of all prompts, and the last one may compute alone."""
    settings = {"async_scheduling": async_scheduling, "enable_prefix_caching": False}
    with open_engine(llama, pipeline=pipeline, **settings) as llm:
        num_steps = 0
        for _ in range(2):
            gate.start(last_step=num_steps)
            steps_before = llm.core.num_steps
            for name in range(6):
                add(llm, str(name), name % 3)
            assert run(llm) == {str(name): expected[name % 3] for name in range(6)}
            num_steps = llm.core.num_steps - steps_before
        assert num_steps > pipeline * (MAX_TOKENS - 1)
        assert gate.last_step == num_steps
        assert gate.waiting_stage is None


@pytest.fixture(
    scope="module",
    params=[(1, 2, False), (1, 2, True), (1, 3, True), (2, 2, True)],
    ids=["pp2", "pp2-async", "pp3-async", "tp2-pp2-async"],
)
def small_pipeline(request: pytest.FixtureRequest, llama: Path) -> Iterator[LLM]:
    """Return an engine with so few blocks that requests preempt each other."""
    tensor, pipeline, ahead = request.param
    blocks = {"num_gpu_blocks_override": 25, "block_size": 4}
    with open_engine(llama, tensor, pipeline, async_scheduling=ahead, **blocks) as llm:
        yield llm


@pytest.mark.parametrize(
    "rounds", [pytest.param(3, id="few"), pytest.param(60, marks=pytest.mark.slow, id="many")]
)
def test_tokens_survive_preemption_and_aborts_in_flight(
    rounds: int, small_pipeline: LLM, expected: list[list[int]]
) -> None:
    llm = small_pipeline
    chance = random.Random(rounds)
    num_preemptions = llm.core.scheduler.num_preemptions
    aborted: set[str] = set()
    deepest = 0
    for number in range(rounds):
        outputs: dict[str, list[int]] = {}
        prompts = {f"{number}-{i}": chance.randrange(len(PROMPTS)) for i in range(16)}
        arrivals = list(prompts)
        while arrivals or llm.core.has_work:
            while arrivals and chance.random() < 0.3:
                name = arrivals.pop()
                add(llm, name, prompts[name])
            collect(llm, outputs)
            in_flight = llm.core._in_flight
            deepest = max(deepest, len(in_flight) + 1)
            if in_flight and chance.random() < 0.05:
                rows = [*in_flight[-1].decode_rows, *in_flight[-1].rows]
                request: Any = llm.core.scheduler._life.batch.at(chance.choice(rows))
                if request is not None:
                    aborted.add(request.request_id)
                    llm.core.abort([request.request_id])
        for name, prompt in prompts.items():
            found = outputs.get(name, [])
            assert found == expected[prompt][: len(found)]
            assert name in aborted or len(found) == MAX_TOKENS
    assert aborted
    assert llm.core.scheduler.num_preemptions > num_preemptions
    assert deepest == llm.core.executor.depth
