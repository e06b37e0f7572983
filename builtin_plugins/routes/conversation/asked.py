"""What a client asks of the next message of a conversation, whatever protocol it speaks.

Plain data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, kw_only=True)
class Conversation:
    """A request for the next message, in the words of chat templates."""

    messages: list[dict[str, Any]]
    """As templates read them: `role`, `content`, `tool_calls`, `tool_call_id`, `reasoning_content`.
    """
    tools: list[dict[str, Any]] = field(default_factory=list)
    """Each `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    tool_choice: Any = None
    """`none`, `auto`, `required` or `{"type": "function", "function": {"name"}}`; None is `auto`.
    """
    parallel_tool_calls: bool = True
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters by name, `response_format` and `structured_outputs` among them."""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters that the protocol has under other names; they go before."""
    plugin_args: Mapping[str, Any] = field(default_factory=dict)
    """For plugins, as `SamplingParams.extra_args`."""
    thinking_token_budget: int | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool | None = None
    """Default: true, unless the final message is continued."""
    continue_final_message: bool = False
    add_special_tokens: bool = False
    beams: float | None = None
    """Search for the likeliest answers, dividing by this power of their length."""
    stream: bool = False
    priority: int = 0
    cache_salt: str = ""
    client: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What features read of the request."""


def thinks(wanted: bool) -> dict[str, Any]:
    """Return what tells chat templates whether to think: families ask under different names."""
    return {"enable_thinking": wanted, "thinking": wanted}
