"""Builds step plans like a scheduler, for a worker with the fake model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.config import EngineConfig
from core.config.build import config_from_kwargs
from core.contracts.models import ModelSource
from core.kv import plan_layout
from core.plugin import Registry, load_plan, make_plan
from core.step import NewRow, StepPlan, StepResult
from core.testing.fake_model import FakeConfig, fake_source
from core.types import SamplingParams
from core.worker import Worker

PLUGINS = ("core.testing.fake_model", "platform_cpu", "attention_torch", "runner_generate")
PROCESSORS = tuple(
    f"logits_{name}"
    for name in ["allowed_tokens", "bad_words", "bias", "min_p", "min_tokens", "penalties"]
)
BLOCK = 4
MAX_LEN = 64
GREEDY = SamplingParams(temperature=0)


def settings(
    *plugins: str, model: FakeConfig | None = None, max_num_seqs: int = 8, **config: Any
) -> tuple[EngineConfig, Registry, ModelSource]:
    """Return the constructor arguments of a worker with the fake model."""
    registry = load_plan(make_plan(["none", *PLUGINS, *PROCESSORS, *plugins]))
    common = {
        "dtype": "float32",
        "max_model_len": MAX_LEN,
        "max_num_seqs": max_num_seqs,
        "num_threads": 1,
    }
    built = config_from_kwargs({"model": "fake:", **common, **config}, registry.options())
    return built, registry, fake_source(model)


class Driver:
    """Requests by name in a worker's rows, with optional chunked prefill."""

    def __init__(self, *plugins: str, max_num_seqs: int = 8, **config: Any) -> None:
        made, self.registry, source = settings(*plugins, max_num_seqs=max_num_seqs, **config)
        self.worker = Worker(made, self.registry, source)
        info = self.worker.start()
        self._blocks = -(-MAX_LEN // BLOCK)
        self._layout = plan_layout(
            info.layers,
            block_size=BLOCK,
            memory_bytes=0,
            num_blocks=self._blocks * max_num_seqs * len(info.layers),
            max_model_len=MAX_LEN,
            max_num_seqs=max_num_seqs,
        )
        self.worker.allocate(self._layout)
        self._free = list(range(max_num_seqs))
        self._new: list[NewRow] = []
        self._ended: list[int] = []
        self._step = 0
        self.rows: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        """Known tokens by request, sampled ones included."""
        self._computed: dict[str, int] = {}

    def add(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        seed: int = 0,
        prompt_len: int | None = None,
        eos: tuple[int, ...] = (),
    ) -> None:
        """Add a request to the next step."""
        row = self._free.pop(0)
        self.rows[name] = row
        self.tokens[name] = list(prompt)
        self._computed[name] = 0
        groups = len(self._layout.groups)
        blocks = [
            [1 + (row * groups + g) * self._blocks + i for i in range(self._blocks)]
            for g in range(groups)
        ]
        known = len(prompt) if prompt_len is None else prompt_len
        self._new.append(NewRow(row, name, list(prompt), known, sampling, seed, eos, blocks))

    def end(self, name: str) -> None:
        """End a request with the next step."""
        row = self.rows.pop(name)
        self._ended.append(row)
        self._free.append(row)

    def plan(self, counts: Mapping[str, int] | None = None) -> StepPlan:
        """Return the next plan: these token counts, or all uncomputed tokens."""
        if counts is None:
            left = {name: len(self.tokens[name]) - self._computed[name] for name in self.rows}
            # A failed request has no tokens left.
            counts = {name: count for name, count in left.items() if count}
        starts = [self._computed[name] for name in counts]
        samples = [
            i for i, name in enumerate(counts) if starts[i] + counts[name] == len(self.tokens[name])
        ]
        plan = StepPlan(
            step=self._step,
            ended=self._ended,
            new=self._new,
            blocks=[],
            rows=[self.rows[name] for name in counts],
            starts=starts,
            counts=list(counts.values()),
            samples=samples,
        )
        for name, count in counts.items():
            self._computed[name] += count
        self._new = []
        self._ended = []
        self._step = self._step + 1
        return plan

    def step(self, counts: Mapping[str, int] | None = None) -> StepResult:
        """Execute the next plan and append its tokens."""
        result = self.worker.execute(self.plan(counts)).get()
        self.take(result)
        return result

    def take(self, result: StepResult) -> None:
        """Append a result's tokens to their requests."""
        names = {row: name for name, row in self.rows.items()}
        for row, tokens in zip(result.rows, result.by_row(), strict=True):
            self.tokens[names[row]] += tokens

    def generate(self, name: str, count: int) -> list[int]:
        """Return the next `count` tokens of one request; all requests run."""
        before = len(self.tokens[name])
        for _ in range(count):
            self.step()
        return self.tokens[name][before:]
