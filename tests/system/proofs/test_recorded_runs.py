"""A run can be recorded and its every scheduling decision replayed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from builtin_plugins.scheduling_policies.fcfs import FirstCome
from core import LLM, SamplingParams
from core.testing.replay import replay


@pytest.mark.parametrize("ahead", [False, True])
def test_recorded_run_replays_exactly(tmp_path: Path, ahead: bool) -> None:
    path = tmp_path / "run.journal"
    draw = random.Random(3)
    settings = {
        "max_model_len": 96,
        "block_size": 4,
        "num_gpu_blocks_override": 60,
        "max_num_batched_tokens": 48,
    }
    without = [
        "no:structured_outputs",
        "no:fair_scheduling",
        "no:kv_eviction",
        "no:metrics_prometheus",
    ]
    kernel = {"plugins": without, "log_level": "error"}  # replayed without extensions
    with LLM("scripted:", journal=str(path), async_scheduling=ahead, **kernel, **settings) as llm:
        for i in range(60):
            text = "".join(draw.choices("abc", k=draw.randint(1, 30)))
            llm.add_request(
                str(i), text, SamplingParams(max_tokens=draw.randint(1, 40), temperature=0)
            )
            llm.step()
            if draw.random() < 0.2:
                llm.abort(str(draw.randrange(i + 1)))
        while llm.has_unfinished_requests():
            llm.step()
        assert llm.core.scheduler.num_preemptions > 0
    report = replay(str(path), policy=FirstCome())
    assert report.num_plans > 60
    assert report.difference is None
