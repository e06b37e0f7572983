"""`AsyncLLM` with the calls of `LLM` that benchmarks need."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from core import AsyncLLM
from core.api import RequestOutput, RequestOutputKind, SamplingParams


class AsyncEngine:
    """The engine of servers; its calls block until all requests have ended."""

    def __init__(self, engine: AsyncLLM) -> None:
        self._runner = asyncio.Runner()
        """Event loop of all requests."""
        self._engine = engine
        self._num_started = 0
        self.config = self._engine.config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended_by: object) -> None:
        self._engine.shutdown()
        self._runner.close()

    def get_tokenizer(self) -> Any:
        """Return the tokenizer, or None."""
        return self._engine.tokenizer

    def generate(
        self, prompts: Sequence[Any], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        """Return the final outputs of all prompts, in their order."""
        return self._runner.run(self._generate(prompts, params))

    async def _generate(
        self, prompts: Sequence[Any], params: Sequence[SamplingParams]
    ) -> list[RequestOutput]:
        pairs = zip(prompts, params, strict=True)
        return await asyncio.gather(*(self._final_output(*pair) for pair in pairs))

    async def _final_output(self, prompt: Any, params: SamplingParams) -> RequestOutput:
        self._num_started += 1
        only_final = params.clone(output_kind=RequestOutputKind.FINAL_ONLY)
        outputs = self._engine.generate(prompt, only_final, str(self._num_started))
        return [output async for output in outputs][-1]
