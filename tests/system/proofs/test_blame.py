"""A plugin error in a request fails only that request and names the plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.testing.invariants import check_scheduler

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


def test_processor_error_fails_only_its_requests(
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
        # The client gets the plugin's name; the details are in the log.
        for output in outputs[1:]:
            assert output.outputs[0].finish_reason == "error"
            request_id = output.request_id
            assert (
                output.error
                == f"plugin 'raising' failed in request {request_id!r}; see the engine log."
            )
        # /metrics and /server_info show these.
        faults = json.loads(llm.core.call("memory.owners").all[0])["faults"]
        assert faults == {"raising": [2, "ZeroDivisionError: broken on purpose"]}
        for part in ("raising", "raises", outputs[1].request_id, "ValueError: broken on purpose"):
            assert part in caplog.text
        check_scheduler(llm.core.scheduler)
        assert llm.core.scheduler.num_running == 0
