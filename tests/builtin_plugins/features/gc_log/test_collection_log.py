"""`gc_debug` logs garbage collections while an engine is open."""

from __future__ import annotations

import gc
import logging

import pytest

from core import LLM

SETTINGS = {"max_model_len": 64, "num_gpu_blocks_override": 32}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of a collection that happens now."""
    caplog.clear()
    gc.collect()
    found = [record.getMessage() for record in caplog.records]
    return [line for line in found if line.startswith("garbage collection: generation 2")]


@pytest.mark.parametrize("gc_debug", [True, False])
def test_collections_are_logged_while_the_engine_is_open(
    gc_debug: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    before = [*gc.callbacks]
    with LLM("scripted:", gc_debug=gc_debug, **SETTINGS) as llm:
        found = lines(caplog)
        assert len(found) == gc_debug  # one, although both halves are in this process
        assert llm.generate("a", use_tqdm=False)[0].finished
    assert lines(caplog) == []
    assert gc.callbacks == before
