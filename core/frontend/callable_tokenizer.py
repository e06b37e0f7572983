"""The tokenizer of `LLM.get_tokenizer`: callable, with a chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from core.contracts.text import Tokenizer
    from core.frontend.text.rendering import Renderer


class CallableTokenizer:
    """The engine's tokenizer with the calls of transformers' tokenizers.

    All else is the engine's own: `encode`, `decode`, `eos_token_id`.
    """

    def __init__(self, tokenizer: Tokenizer, renderer: Renderer) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer

    @classmethod
    def of(cls, renderer: Renderer) -> Self | None:
        """Return the tokenizer of a renderer; None if it has none."""
        tokenizer = renderer.tokenizer
        return None if tokenizer is None else cls(tokenizer, renderer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __len__(self) -> int:
        return self._tokenizer.vocab_size

    def __call__(
        self, text: str | Sequence[str], add_special_tokens: bool = True
    ) -> dict[str, Any]:
        """Return `input_ids` and `attention_mask` of a text, or of a list of texts."""
        if isinstance(text, str):
            ids = self._tokenizer.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        each = [self(one, add_special_tokens) for one in text]
        return {key: [one[key] for one in each] for key in ("input_ids", "attention_mask")}

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        return_dict: bool = True,
        **template_kwargs: Any,
    ) -> str | list[int] | dict[str, Any]:
        """Return a conversation's prompt as a mapping, ids or text."""
        prompt = self._renderer.messages(
            conversation,
            tools=tools,
            chat_template=chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )
        if not tokenize:
            return prompt.text or ""
        ids = prompt.token_ids
        return {"input_ids": ids, "attention_mask": [1] * len(ids)} if return_dict else ids
