"""Prompts of many clients are read without holding up the event loop, or each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from core.text.prompts import Prompt
from core.text.rendering import LONG_TEXT_CHARS, Renderer
from core.text.turns import Turns
from core.text.windows import Stopped
from core.types import PromptType

T = TypeVar("T")

NUM_THREADS: Final = max(2, min(8, (os.cpu_count() or 2) // 2))
"""For each kind of work: templates, and long texts, which take longer."""


class Reading:
    """Reads prompts of up to `most` tokens, each client's in turn.

    `client` names whose a prompt is.
    """

    def __init__(self, renderer: Renderer, most: int) -> None:
        self._renderer = renderer
        self._most = most
        self._templates = Turns("templates", NUM_THREADS)
        self._long = Turns("long-texts", NUM_THREADS)

    async def prompt(
        self,
        prompt: PromptType | Mapping[str, Any] | Prompt,
        add_special_tokens: bool = True,
        *,
        keep: int | None = None,
        client: str = "",
    ) -> Prompt:
        """Return a prompt that was read: all tokens, or with `keep` (-1: as many as there may be)
        the last ones.

        Raises `InvalidRequest`, early where there are far more than there may be. One token more
        than `keep` may come.
        """
        if isinstance(prompt, Prompt):
            return prompt
        # One more, so that who looks at the tokens sees that some were cut.
        last = None if keep is None else 1 + (self._most if keep == -1 else min(keep, self._most))
        read = partial(self._renderer.prompt, prompt, add_special_tokens, self._most, keep=last)
        text = (
            prompt
            if isinstance(prompt, str)
            else prompt.get("prompt")
            if isinstance(prompt, Mapping)
            else None
        )
        if not isinstance(text, str) or len(text) <= LONG_TEXT_CHARS:
            return read()
        return await self._long.run(lambda stopped: read(stopped=stopped), client)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        keep: int | None = None,
        client: str = "",
        **options: Any,
    ) -> Prompt:
        """Return the prompt of a conversation; options as in `ChatRenderer.render`, and `prompt`."""
        text = await self._templates.run(
            lambda stopped: self._renderer.text_of(messages, **options), client
        )
        return await self.prompt(text, False, keep=keep, client=client)

    async def aside(self, work: Callable[[Stopped], T], client: str = "") -> T:
        """Return what `work` makes of texts that may be long; it is given what to ask whether
        anybody still waits.
        """
        return await self._long.run(work, client)
