"""A plugin that fails in a request costs that request, by name, and nobody else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core import LLM, SamplingParams

RAISING = '''
"""A processor that fails."""
from core.api import Entry, hookimpl


class Raises:
    params = ()
    argmax_invariant = False

    def __init__(self, context):
        pass

    def wants(self, sampling):
        return bool(sampling.extra_args)

    def added(self, row, sampling, token_ids, prompt_len):
        self.where = sampling.extra_args["raise_in"]
        if self.where == "added":
            raise ValueError("broken on purpose")

    def removed(self, row):
        pass

    def apply(self, logits, rows):
        raise ZeroDivisionError("broken on purpose")


@hookimpl
def engine_logits_processors():
    return [Entry("raises", Raises, "fails")]
'''


def test_a_processor_that_raises_fails_the_requests_that_use_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin = tmp_path / "raising.py"
    plugin.write_text(RAISING)
    params = [
        SamplingParams(max_tokens=20, temperature=0),
        SamplingParams(max_tokens=20, temperature=0, extra_args={"raise_in": "added"}),
        SamplingParams(max_tokens=20, temperature=0, extra_args={"raise_in": "apply"}),
    ]
    settings = {
        "max_model_len": 128,
        "kv_cache_memory_bytes": 1 << 20,
        "log_level": "error",
        "disable_log_stats": False,
    }
    with LLM("scripted:", plugins=[str(plugin)], **settings) as llm:
        outputs = llm.generate(["fine", "added", "apply"], params, use_tqdm=False)
        assert outputs[0].outputs[0].text == "fine"
        for output in outputs[
            1:
        ]:  # who asked is told whose fault it is; what and where is for whoever runs the engine
            assert output.outputs[0].finish_reason == "error"
            assert (
                output.error
                == f"plugin 'raising' failed in request {output.request_id!r}; the engine's log "
                "says more."
            )
        faults = json.loads(llm.core.call("memory.owners")[0])[
            "faults"
        ]  # which /metrics and /server_info show
        assert faults == {"raising": [2, "ZeroDivisionError: broken on purpose"]}
        for part in ("raising", "raises", outputs[1].request_id, "ValueError: broken on purpose"):
            assert part in caplog.text
        llm.core.scheduler.check()
        assert llm.core.scheduler.num_running == 0
