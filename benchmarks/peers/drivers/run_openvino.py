"""Driver of OpenVINO GenAI: continuous batching with prefix caching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai
from protocol import Prompts, answer_lines


class OpenVino:
    """A `ContinuousBatchingPipeline`."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        """Load the model; options are `cache_gb`, `precision` and `settings`."""
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = options["cache_gb"]
        scheduler.max_num_batched_tokens = 2048
        scheduler.max_num_seqs = 256
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = True
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": options["precision"],
            "PERFORMANCE_HINT": "LATENCY",
            **options.get("settings", {}),
        }
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler, "CPU", settings
        )

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together."""
        outputs = self._pipeline.generate(
            [_tensor(ids) for ids in prompts], [_config(num_tokens)] * len(prompts)
        )
        return [len(output.m_generation_ids[0]) for output in outputs]

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt, step by step."""
        handle = self._pipeline.add_request(0, _tensor(prompt), _config(num_tokens))
        times: list[float] = []
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            while handle.can_read():
                for output in handle.read().values():
                    times += [time.perf_counter()] * len(output.generated_ids)
        return times


def _tensor(ids: Sequence[int]) -> openvino.Tensor:
    return openvino.Tensor(np.array([ids], dtype=np.int64))


def _config(num_tokens: int) -> openvino_genai.GenerationConfig:
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = num_tokens
    config.ignore_eos = True
    config.do_sample = False
    config.num_beams = 1
    config.apply_chat_template = False
    return config


if __name__ == "__main__":
    answer_lines(OpenVino)
