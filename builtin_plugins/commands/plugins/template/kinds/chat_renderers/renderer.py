"""A chat renderer: formats messages as the prompt text that the model was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.api import EngineConfig, InvalidRequest
from core.api.models import ModelSource
from core.api.serving import Tokenizer

EXAMPLES = [
    ([{"role": "user", "content": "Hi."}], {}, "user: Hi.\nassistant: "),
    (
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi."}],
        {"add_generation_prompt": False},
        "system: Be brief.\nuser: Hi.\n",
    ),
]
"""Messages, keyword arguments of `render`, and the prompt."""


class Acme:
    """Formats each message as a line `role: text`, then `assistant: `."""

    def __init__(self, tokenizer: Tokenizer, source: ModelSource, config: EngineConfig) -> None:
        pass

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt. Raises `InvalidRequest` naming the unsupported message."""
        if not messages:
            raise InvalidRequest("messages", "is empty; give at least one message.")
        if tools:
            raise InvalidRequest("tools", "this renderer has no way to show tools; leave them out.")
        prompt = "\n".join(_line(i, message) for i, message in enumerate(messages))
        if continue_final_message:
            return prompt
        return prompt + "\n" + ("assistant: " if add_generation_prompt else "")


def _line(index: int, message: Any) -> str:
    for field in ("role", "content"):
        if not isinstance(message, Mapping) or not isinstance(message.get(field), str):
            raise InvalidRequest(f"messages[{index}].{field}", "must be a text.")
    return f"{message['role']}: {message['content']}"
