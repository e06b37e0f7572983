"""Driver of llama.cpp through its C functions: one batch of all sequences per step."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np
from protocol import Prompts, answer_lines

BATCH_TOKENS = 2048
SEQUENCES = 32
CONTEXT_TOKENS = 16_384

Row = tuple[int, int, int, bool]
"""Token, position, sequence, and whether its logits are needed."""


class LlamaCpp:
    """A context for many sequences."""

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        """Load the model."""
        llama_cpp.llama_backend_init()
        self._silence = llama_cpp.llama_log_callback(
            lambda level, text, data: None
        )  # keeps a reference: C code calls it
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(
            model.encode(), llama_cpp.llama_model_default_params()
        )
        if not self._model:
            raise SystemExit(
                f"llama.cpp could not load {model}; make it with drivers/make_gguf.py."
            )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = CONTEXT_TOKENS
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = 512
        params.n_seq_max = SEQUENCES
        params.n_threads = params.n_threads_batch = threads
        if hasattr(params, "kv_unified"):
            params.kv_unified = True  # sequences share all cache cells
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        self._batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def generate(self, prompts: Prompts, num_tokens: int) -> list[int]:
        """Complete all prompts together."""
        return [len(times) for times in self._complete(prompts, num_tokens)]

    def token_times(self, prompt: Sequence[int], num_tokens: int) -> list[float]:
        """Complete one prompt."""
        return self._complete([prompt], num_tokens)[0]

    def _complete(self, prompts: Prompts, num_tokens: int) -> list[list[float]]:
        llama_cpp.llama_memory_clear(self._memory, True)
        rows = [
            (token, position, sequence, position == len(ids) - 1)
            for sequence, ids in enumerate(prompts)
            for position, token in enumerate(ids)
        ]
        times: list[list[float]] = [[] for _ in prompts]
        for step in range(num_tokens):
            tokens = self._run(rows)
            for sequence in tokens:
                times[sequence].append(time.perf_counter())
            rows = [(tokens[i], len(ids) + step, i, True) for i, ids in enumerate(prompts)]
        return times

    def _run(self, rows: Sequence[Row]) -> dict[int, int]:
        """Compute rows; return the argmax token of each sequence with logits."""
        tokens: dict[int, int] = {}
        for first in range(0, len(rows), BATCH_TOKENS):
            piece = rows[first : first + BATCH_TOKENS]
            self._batch.n_tokens = len(piece)
            for i, (token, position, sequence, needs_logits) in enumerate(piece):
                self._batch.token[i] = token
                self._batch.pos[i] = position
                self._batch.logits[i] = needs_logits
                self._batch.n_seq_id[i] = 1
                self._batch.seq_id[i][0] = sequence
            if code := llama_cpp.llama_decode(self._context, self._batch):
                raise SystemExit(f"llama_decode failed with {code} for {len(piece)} tokens.")
            for i, (_, _, sequence, needs_logits) in enumerate(piece):
                if needs_logits:
                    logits = llama_cpp.llama_get_logits_ith(self._context, i)
                    tokens[sequence] = int(np.ctypeslib.as_array(logits, (self._vocab,)).argmax())
        return tokens


if __name__ == "__main__":
    answer_lines(LlamaCpp)
