"""Runs all prompts with adapters in one batch, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from core import LLM, LoRARequest, SamplingParams
from core.testing.invariants import check_scheduler

SETTINGS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 160,
    "max_num_seqs": 8,
    "num_threads": 1,
    "kv_cache_memory_bytes": 16 << 20,
}


SHARED = [(7 * i * i + 3 * i) % 290 + 4 for i in range(40)]


PROMPTS = [[*SHARED[:length], 9 + length] for length in (40, 33, 12, 5)]


PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)


Tokens = list[tuple[int, ...]]


def run(model: Path, adapters: list[LoRARequest | None], **options: Any) -> list[Tokens]:
    """Return the tokens of every prompt for each adapter, all in one batch."""
    return counted(model, adapters, **options)[0]


def counted(
    model: Path, adapters: list[LoRARequest | None], **options: Any
) -> tuple[list[Tokens], int]:
    """Return the same, and the number of preemptions."""
    jobs = [(prompt, adapter) for prompt in PROMPTS for adapter in adapters]
    with LLM(str(model), **SETTINGS | options) as llm:
        given = {"lora_request": [adapter for _, adapter in jobs]} if any(adapters) else {}
        outputs = llm.generate([prompt for prompt, _ in jobs], PARAMS, use_tqdm=False, **given)
        assert [output.error for output in outputs if output.error] == []
        check_scheduler(llm.core.scheduler)
        preempted = llm.core.scheduler.num_preemptions
    found = [tuple(output.outputs[0].token_ids) for output in outputs]
    return [found[index :: len(adapters)] for index in range(len(adapters))], preempted


LORA: dict[str, Any] = {"enable_lora": True, "max_loras": 3, "max_lora_rank": 64}
