"""`EngineCore` beyond what `LLM` shows: how many may wait, and who may not be refused."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams
from core.errors import QueueFull

GREEDY = SamplingParams(max_tokens=3, temperature=0)


def test_a_full_queue_refuses_what_would_have_to_wait():
    with LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=2, max_waiting=1) as llm:
        for request_id in "abc":  # two seats, and one that waits
            llm.add_request(request_id, "text", GREEDY)
        with pytest.raises(QueueFull, match="--max-waiting"):
            llm.add_request("d", "text", GREEDY)
        while llm.has_unfinished_requests():
            llm.step()
        llm.add_request("d", "text", GREEDY)


def test_nobody_may_wait_where_none_may():
    with LLM("scripted:", max_model_len=64, num_gpu_blocks_override=32, max_num_seqs=1, max_waiting=0) as llm:
        llm.add_request("a", "text", GREEDY)
        with pytest.raises(QueueFull, match="no more than 0 may wait"):
            llm.add_request("b", "text", GREEDY)
