"""Reads prompts of many clients in threads, fairly, without blocking the
event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from core.frontend.fair_semaphore import FairSemaphore
from core.frontend.text.rendering import LONG_TEXT_CHARS, Renderer, Stopped
from core.types import PromptType
from core.types.prompts import Prompt

T = TypeVar("T")


class FairThreadPool:
    """Runs a bounded number of jobs; waiting ones start in turn by client,
    oldest first.

    A job that is cancelled while it waits never starts; a running one can check
    `stopped`.
    """

    def __init__(self, name: str, num_threads: int) -> None:
        self._threads = ThreadPoolExecutor(num_threads, name)
        self._slots = FairSemaphore(num_threads)

    async def run(self, work: Callable[[Stopped], T], client: str = "") -> T:
        """Return the result of `work`; its argument returns True after a cancel."""
        await self._slots.acquire(client)
        cancelled = threading.Event()
        try:
            job = self._threads.submit(work, cancelled.is_set)
        except BaseException:  # the thread could not be started
            self._slots.release()
            raise
        # a cancelled job keeps its thread to its end
        job.add_done_callback(lambda job: self._slots.release())
        try:
            return await asyncio.wrap_future(job)
        finally:
            cancelled.set()
            del job  # its exception holds this frame: a reference cycle


class PromptReader:
    """Reads prompts of up to `max_tokens` tokens, fairly by `client`."""

    def __init__(self, renderer: Renderer, max_tokens: int, num_cores: int) -> None:
        self._renderer = renderer
        self._max_tokens = max_tokens
        self.num_threads = num = max(2, min(8, num_cores // 2))
        """Threads for templates, and as many for long texts."""
        self._templates = FairThreadPool("templates", num)
        self._long_texts = FairThreadPool("long-texts", num)

    async def prompt(
        self,
        prompt: PromptType | Mapping[str, Any] | Prompt,
        add_special_tokens: bool = True,
        *,
        keep: int | None = None,
        client: str = "",
    ) -> Prompt:
        """Return a prompt as token ids: all, or the last `keep` (-1: the
        maximum) and one more.

        Raises `InvalidRequest`, early for a text that is far too long.
        """
        if isinstance(prompt, Prompt):
            return prompt
        read = partial(self._read, prompt, add_special_tokens, keep)
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        if not isinstance(text, str) or len(text) <= LONG_TEXT_CHARS:
            return read()
        return await self._long_texts.run(lambda stopped: read(stopped=stopped), client)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_special_tokens: bool = False,
        keep: int | None = None,
        client: str = "",
        **options: Any,
    ) -> Prompt:
        """Return the prompt of a conversation.

        Options as in `ChatRenderer.render` and `prompt`.
        """

        def render(stopped: Stopped) -> Prompt | str:
            text = self._renderer.chat_text(messages, **options)
            if len(text) > LONG_TEXT_CHARS:
                return text
            return self._read(text, add_special_tokens, keep)

        ready = await self._templates.run(render, client)
        return await self.prompt(ready, add_special_tokens, keep=keep, client=client)

    def _read(self, prompt: Any, special: bool, keep: int | None, **reading: Any) -> Prompt:
        last = None
        if keep is not None:
            limit = self._max_tokens if keep == -1 else min(keep, self._max_tokens)
            # one more token shows that the prompt was truncated
            last = limit + 1
        return self._renderer.prompt(prompt, special, self._max_tokens, keep=last, **reading)

    async def run(self, work: Callable[[Stopped], T], client: str = "") -> T:
        """Run work on possibly long texts; see `FairThreadPool.run`."""
        return await self._long_texts.run(work, client)
