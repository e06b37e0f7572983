"""Driver of vLLM on CPUs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from protocol import Prompts, answer_lines
from vllm import LLM, SamplingParams


class Vllm:
    """vLLM's `LLM`.

    VLLM_CPU_OMP_THREADS_BIND sets its threads, VLLM_CPU_KVCACHE_SPACE its cache.
    """

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        """Load the model."""
        self._llm = LLM(model=model, dtype="bfloat16", seed=0, **options)

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together."""
        requests = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = self._llm.generate(requests, _params(num_tokens), use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt, step by step."""
        engine = self._llm.llm_engine
        engine.add_request("timed", {"prompt_token_ids": list(prompt)}, _params(num_tokens))
        times: list[float] = []
        while engine.has_unfinished_requests():
            for output in engine.step():
                times += [time.perf_counter()] * (len(output.outputs[0].token_ids) - len(times))
        return times


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    answer_lines(Vllm)
