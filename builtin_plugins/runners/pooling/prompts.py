"""Tokenizing of pooling requests: named prompts, pairs of texts, truncation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from core.api import InvalidRequest, PoolingParams, did_you_mean
from core.model_spec.pooling import SentenceFacts

ReadMessages = Callable[[Sequence[Mapping[str, Any]]], tuple[Sequence[Mapping[str, Any]], Any]]
"""Returns messages to render, and the prompt keys of their images."""
Side = str | Mapping[str, Any]
"""A text, or an object with `content`: parts with texts and images."""
PAIR_ROLES: Final = ("query", "document")
"""Roles of a chat template that renders a pair."""
NO_FACTS: Final = SentenceFacts()
LONG_CHARS: Final = 2**15
"""Length in characters up to which pairs are tokenized completely."""


class PoolingPrompts:
    """Tokenizes prompts and pairs with the model's named prompts and context length."""

    def __init__(
        self,
        renderer: Any,
        sentence: SentenceFacts | None,
        max_tokens: int,
        longest: int | None,
        read_messages: ReadMessages,
        pair_end_ids: Sequence[int] = (),
    ) -> None:
        """`longest`: maximum tokens of a text that is not split; None: no limit.

        `pair_end_ids`: tokens after a pair that the chat template renders.
        """
        self._renderer = renderer
        self._facts = sentence or NO_FACTS
        self._max_tokens = max_tokens
        self._longest = longest
        self._read_messages = read_messages
        self._pair_end_ids = pair_end_ids

    def one(
        self, prompt: Any, params: PoolingParams, name: str | None = None, **reading: Any
    ) -> tuple[Any, PoolingParams]:
        """Return the tokenized prompt, with the text of prompt `name` before it, and its
        parameters.

        Truncation preserves the beginning and the special tokens at the end. A far too long text is
        tokenized only as far as needed; `reading` as in `Renderer.encode`.
        """
        text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
        before = self._before(name)
        if isinstance(text, str) and (
            isinstance(prompt, str) or prompt.get("prompt_token_ids") is None
        ):
            text = before + text
            text = text.lower() if self._facts.lower_case else text
            given = {**prompt, "prompt": text} if isinstance(prompt, Mapping) else {"prompt": text}
            ids = self._fitted(text, None, params)
            whole = given if ids is None else {**given, "prompt_token_ids": ids[0]}
            ready = self._renderer.prompt(whole, True, self._longest, **reading)
            return ready, params if self._facts.include_prompt or not before else self._without(
                before, ready, params
            )
        ready = self._renderer.prompt(prompt)
        keep = self._keep(params)
        return ready if keep is None else replace(ready, token_ids=ready.token_ids[:keep]), params

    def pair(self, first: Side, second: Side, params: PoolingParams) -> tuple[Any, PoolingParams]:
        """Return two sides as one prompt, and parameters with the start of a second text."""
        if self._renders_pairs:
            return self._rendered(first, second, params)
        if not isinstance(first, str) or not isinstance(second, str):
            raise InvalidRequest(
                "data",
                "got contents besides text; expected two texts, since the chat template has no "
                f"roles {' and '.join(PAIR_ROLES)}. Send texts.",
            )
        limited = params
        if params.truncate_prompt_tokens is None and len(first) + len(second) > LONG_CHARS:
            # One token above the limit is enough for the error, without tokenizing the rest.
            limited = params.clone(truncate_prompt_tokens=self._max_tokens + 1)
        found = self._fitted(first, second, limited, always=True)
        if found is None:
            raise InvalidRequest(
                "data", "the tokenizer cannot join two texts; use one with a tokenizer.json."
            )
        ids, types = found
        start = types.index(1) if 1 in types else -1
        prompt = self._renderer.prompt({"prompt_token_ids": ids, "prompt": f"{first}\n{second}"})
        return prompt, params.clone(pair_start=start)

    @cached_property
    def _renders_pairs(self) -> bool:
        """Whether the chat template has roles for a pair."""
        names = getattr(self._renderer.chat, "template_names", None)
        try:
            return names is not None and set(PAIR_ROLES) <= names()[1]
        except InvalidRequest:  # there is no template
            return False

    @cached_property
    def _document_is_first(self) -> bool:
        """Whether the chat template writes the document, and its images, before the query."""
        sides = [{"role": role, "content": f"[[{role}]]"} for role in PAIR_ROLES]
        text = str(self._renderer.chat_text(sides))
        return text.find("[[document]]") < text.find("[[query]]")

    def _rendered(
        self, first: Side, second: Side, params: PoolingParams
    ) -> tuple[Any, PoolingParams]:
        """Return the prompt of a pair by the chat template. It is never truncated: the score is
        read at its end.
        """
        contents = [side if isinstance(side, str) else side["content"] for side in (first, second)]
        given = [{"role": r, "content": c} for r, c in zip(PAIR_ROLES, contents, strict=True)]
        messages, fields = self._read_messages(given[::-1] if self._document_is_first else given)
        text = self._renderer.chat_text(messages)
        ids = self._renderer.encode(text, False, max_tokens=self._max_tokens)
        limit = self._keep(params)
        if limit is not None and len(ids) > limit:
            raise InvalidRequest(
                "truncate_prompt_tokens",
                f"got {limit} for a pair of {len(ids)} tokens; expected no truncation, since the "
                "chat template ends the prompt. Shorten the texts.",
            )
        whole = {"prompt": text, "prompt_token_ids": ids}
        if self._pair_end_ids:  # no text has them, so the prompt is tokens only
            whole = {"prompt_token_ids": [*ids, *self._pair_end_ids]}
        prompt = self._renderer.prompt({**whole, **fields})
        return prompt, params.clone(truncate_prompt_tokens=None)

    def _without(self, before: str, ready: Any, params: PoolingParams) -> PoolingParams:
        """Return parameters that exclude a named prompt's tokens, counted as in
        sentence-transformers.
        """
        before = before.lower() if self._facts.lower_case else before
        alone, bare = (self._renderer.encode(before, special) for special in (True, False))
        count = len(alone) - (
            bool(bare) and alone[-1] != bare[-1]
        )  # except for a trailing special token
        if count >= len(ready.token_ids):
            raise InvalidRequest(
                "truncate_prompt_tokens",
                f"leaves {len(ready.token_ids)} tokens, and the prompt before the text has "
                f"{count}.",
            )
        return params.clone(unpooled=count)

    def _before(self, name: str | None) -> str:
        prompts = self._facts.prompts
        name = self._facts.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in prompts:
            known = ", ".join(sorted(prompts)) or "none"
            raise InvalidRequest(
                "prompt_name",
                f"{name!r} is not known{did_you_mean(name, prompts)}. Known: {known}.",
            )
        return prompts[name]

    def _keep(self, params: PoolingParams) -> int | None:
        keep = params.truncate_prompt_tokens
        return self._max_tokens if keep == -1 else keep

    def _fitted(
        self, text: str, pair: str | None, params: PoolingParams, *, always: bool = False
    ) -> tuple[list[int], list[int]] | None:
        """Return truncated ids and type ids of a text or a pair; None without truncation or
        support.
        """
        keep = self._keep(params)
        encode = getattr(self._renderer.tokenizer, "encode_fitted", None)
        if encode is None or (keep is None and not always):
            return None
        found: tuple[list[int], list[int]] = encode(text, pair, keep)
        return found
