"""Engines over small caches, with a connector behind them and without."""

from __future__ import annotations

import time
from inspect import unwrap
from typing import Any

from core import LLM, SamplingParams
from tests.patience import PATIENCE_S

FAKE = ["core.testing.fake_model", "core.testing.kv_faults", "tests/proofs/features/windowed.py"]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
PROMPTS = [[2 + (i * 5 + j * j) % 60 for j in range(70)] for i in range(8)]
"""Eight beginnings, over a cache that holds three."""
BLOCKS = 40
SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "max_num_seqs": 4,
    "dtype": "float32",
    "max_model_len": 128,
    "block_size": 8,
    "num_threads": 1,
    "plugins": FAKE,
}
Tokens = list[list[int]]


def open_llm(connector: str = "", extra: dict[str, Any] | None = None, *, model: str = "fake:", **options: Any) -> LLM:
    """Return an engine over a small cache; `options` that belong to the transfer config are given in `transfer`."""
    transfer = options.pop("transfer", {})
    given = {"kv_connector": connector, "kv_connector_extra_config": extra or {}, **transfer} if connector else None
    return LLM(model, num_gpu_blocks_override=BLOCKS, kv_transfer_config=given, **SETTINGS | options)


def run(llm: LLM, prompts: list[list[int]] = PROMPTS) -> tuple[Tokens, list[int]]:
    """Return the tokens of every prompt, and how many of its own were found."""
    outputs = llm.generate(prompts, PARAMS, use_tqdm=False)
    llm.core.scheduler.check()
    return [list(o.outputs[0].token_ids) for o in outputs], [o.num_cached_tokens or 0 for o in outputs]


def traffic(llm: LLM) -> Any:
    """Return the scheduler half."""
    planned = dict(llm.core.scheduler._extensions._planned)["kv_connectors"]
    return unwrap(planned).__self__


def settle(llm: LLM) -> None:
    """Step until every block that is to leave has left."""
    half, end_s = traffic(llm), time.monotonic() + PATIENCE_S
    while half._fresh or half._moves:
        assert time.monotonic() < end_s, "blocks are on their way for ever"
        llm.core.step()
        time.sleep(0.005)
