"""Prompts in every form users write them become token ids. Knows tokenizer and chat renderer, nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.errors import InvalidRequest
from core.types import PromptType

if TYPE_CHECKING:
    from core.contracts import ChatRenderer, Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it."""

    token_ids: list[int]
    text: str | None = None
    cache_salt: str = ""


class Renderer:
    """Turns prompts and conversations into token ids."""

    def __init__(self, tokenizer: Tokenizer | None, chat: ChatRenderer | None, chat_template: str | None) -> None:
        self.tokenizer = tokenizer
        self.chat = chat
        self._chat_template = _read_template(chat_template)

    def prompt(self, prompt: PromptType | Mapping[str, Any], add_special_tokens: bool = True) -> Prompt:
        """Return the token ids of a text, of ids, or of a dict with one of them.

        Raises `InvalidRequest` for anything else, and for text when there is no tokenizer.
        """
        if isinstance(prompt, str):
            return Prompt(self.encode(prompt, add_special_tokens), prompt)
        if isinstance(prompt, Mapping):
            salt = prompt.get("cache_salt") or ""
            if not isinstance(salt, str):
                raise InvalidRequest("cache_salt", f"must be a text, not {salt!r}.")
            ids, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
            if ids is not None:
                return Prompt(_ids(ids), text, salt)
            if isinstance(text, str):
                return Prompt(self.encode(text, add_special_tokens), text, salt)
            raise InvalidRequest("prompt", "a prompt dict needs `prompt` (a text) or `prompt_token_ids`.")
        return Prompt(_ids(prompt))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return token ids of a text."""
        if self.tokenizer is None:
            raise InvalidRequest("prompt", "there is no tokenizer (skip_tokenizer_init); give token ids.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest("prompt", f"is not valid text: lone surrogate at character {error.start}.") from error
        return self.tokenizer.encode(text, add_special_tokens)

    def messages(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Prompt:
        """Return the prompt of a conversation; options as in `ChatRenderer.render`."""
        if self.chat is None or self.tokenizer is None:
            raise InvalidRequest(
                "messages", "this model has no chat renderer; use completions, or load one (`chat_template`)."
            )
        if options.get("chat_template") is None:
            options["chat_template"] = self._chat_template
        text = self.chat.render(messages, **options)
        return Prompt(self.encode(text, add_special_tokens=False), text)


def _ids(value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest("prompt", f"must be a text, token ids or a dict of them, not {type(value).__name__}.")
    return list(value)


def _read_template(template: str | None) -> str | None:
    """Return the template text: the argument itself, or the contents of the file it names."""
    if template is None or "{" in template or "\n" in template:
        return template
    path = Path(template)
    if not path.is_file():
        raise InvalidRequest(
            "chat_template", f"{template!r} is neither a template nor a file; give a path or the template text."
        )
    return path.read_text(encoding="utf-8")
