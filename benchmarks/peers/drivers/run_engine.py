"""Driver of this engine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from core_kernels.library import load_library
from protocol import Prompts, answer_lines

from core import LLM, SamplingParams


class Ours:
    """`LLM` in this process."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        """Load the model; the option `isa` selects the kernels' instruction set."""
        isa = options.pop("isa", None)
        library = load_library()
        if isa and not (library and library.core_kernels_use(isa.encode())):
            raise SystemExit(f"this machine or the library has no {isa}")
        self._llm = LLM(model, num_threads=threads, log_level="error", **options)

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together."""
        outputs = self._llm.generate(
            [list(ids) for ids in prompts], _params(num_tokens), use_tqdm=False
        )
        return [len(output.outputs[0].token_ids) for output in outputs]

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt, step by step."""
        self._llm.add_request("timed", list(prompt), _params(num_tokens))
        times: list[float] = []
        while self._llm.has_unfinished_requests():
            for output in self._llm.step():
                # A step may generate several tokens at the same time.
                times += [time.perf_counter()] * (len(output.outputs[0].token_ids) - len(times))
        return times


def _params(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)


if __name__ == "__main__":
    answer_lines(Ours)
