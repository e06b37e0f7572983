"""Driver of transformers: `generate` over one batch of prompts of equal length."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from protocol import Prompts, answer_lines
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer


class Transformers:
    """A bfloat16 model with torch's attention."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        """Load the model."""
        torch.set_num_threads(threads)
        load: Any = AutoModelForCausalLM.from_pretrained
        self._model = load(
            model, dtype=torch.bfloat16, attn_implementation="sdpa", **options
        ).eval()

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together."""
        return [self._complete(prompts, num_tokens)] * len(prompts)

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt with a streamer."""
        clock = _Clock()
        self._complete([prompt], num_tokens, streamer=clock)
        return clock.times[1:]  # the first call has the prompt

    @torch.inference_mode()
    def _complete(self, prompts: Prompts, num_tokens: int, **options: Any) -> int:
        ids = torch.tensor(prompts)
        lengths = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            pad_token_id=0,
            **lengths,
            **options,
        )
        return int(out.shape[1] - ids.shape[1])


class _Clock(BaseStreamer):
    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: object) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


if __name__ == "__main__":
    answer_lines(Transformers)
