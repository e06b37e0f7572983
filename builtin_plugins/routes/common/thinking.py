"""Reasoning effort and switches of a request: template arguments, and what a template ignores."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from builtin_plugins.output_parsers.api import ReasoningFormat
from builtin_plugins.routes.common.conversation import Conversation, thinking_kwargs
from core.api import ConfigError, InvalidRequest
from core.api.serving import ChatRenderer

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Efforts of OpenAI's and Anthropic's clients; `none` switches reasoning off."""
EFFORT: Final = "reasoning_effort"
"""The template argument of the effort."""
_OFF: Final = (False, None, "", "no_think", "disabled")
"""Values that switch reasoning off."""


@dataclass(frozen=True, slots=True)
class ThinkingChoice:
    """Template arguments of one request, with what becomes of its reasoning."""

    template_kwargs: Mapping[str, Any]
    """Arguments of the chat template."""
    parser_kwargs: Mapping[str, Any]
    """The arguments that reasoning parsers believe: without switches that the template ignores."""
    ends_at_once: bool
    """Reasoning is off, but the template cannot say so: a budget of 0 tokens ends it."""
    ignored: tuple[str, ...]
    """Field names without effect, as the client wrote them."""


@dataclass(frozen=True, slots=True)
class ThinkingSettings:
    """The server's defaults: `--default-chat-template-kwargs` and `--reasoning-effort-map`."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Template arguments of requests that do not set them."""
    efforts: Mapping[str, Any] = field(default_factory=dict)
    """Another effort, or template arguments, by effort."""
    can_end: bool = False
    """Whether the engine can end reasoning at a budget."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], *, can_end: bool) -> ThinkingSettings:
        """Read them from the server's options. Raises `ConfigError` for other values."""
        efforts = options.get("reasoning_effort_map") or {}
        for name, value in efforts.items():
            if not isinstance(value, str | dict):
                raise ConfigError(
                    f"--reasoning-effort-map.{name}: got {value!r:.80}; expected an effort or an "
                    "object of template arguments. Give one of them."
                )
        return cls(dict(options.get("default_chat_template_kwargs") or {}), efforts, can_end)

    def choose(
        self,
        conversation: Conversation,
        form: ReasoningFormat | None,
        renderer: ChatRenderer | None,
    ) -> ThinkingChoice:
        """Return the template arguments of a conversation. Raises `InvalidRequest`."""
        read, texts = _template_names(conversation, renderer)
        off = {**thinking_kwargs(False), **(form.off_switches if form else {})}
        kwargs = dict(self.defaults)
        fields: dict[str, str] = {}  # the client's field, by template argument
        if conversation.thinking is not None:
            switches = thinking_kwargs(True) if conversation.thinking else off
            kwargs |= switches
            fields |= dict.fromkeys(switches, "thinking")
        if conversation.effort is not None:
            given = self._effort(conversation, texts, off)
            kwargs |= given
            fields |= dict.fromkeys(given, conversation.effort_field)
        kwargs |= conversation.template_kwargs
        own = (name for name in conversation.template_kwargs if name != "documents")
        fields |= {name: f"chat_template_kwargs.{name}" for name in own}
        if read is None:
            return ThinkingChoice(kwargs, kwargs, ends_at_once=False, ignored=())
        switched_off = [name for name in off if name in kwargs and kwargs[name] in _OFF]
        unheard = bool(switched_off) and not any(name in read for name in switched_off)
        ends_at_once = unheard and self.can_end
        useful = {fields[name] for name in fields if name in read}
        if ends_at_once:
            useful |= {fields[name] for name in switched_off if name in fields}
        believed = {
            name: value
            for name, value in kwargs.items()
            if name in read or name not in switched_off
        }
        ignored = dict.fromkeys(each for each in fields.values() if each not in useful)
        return ThinkingChoice(kwargs, believed, ends_at_once, tuple(ignored))

    def _effort(
        self, conversation: Conversation, texts: Collection[str], off: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the template arguments of an effort. Raises `InvalidRequest` for an unknown one.

        Values that the template names are known, too.
        """
        effort = conversation.effort
        mapped = self.efforts.get(effort, effort) if effort is not None else None
        if isinstance(mapped, Mapping):
            return mapped
        known = {*EFFORTS, *self.efforts}
        if effort not in known and effort not in texts:
            names = ", ".join((*EFFORTS, *(name for name in self.efforts if name not in EFFORTS)))
            raise InvalidRequest(
                conversation.effort_field,
                f"got {effort!r:.80}; expected one of {names}. Give one of these, or start with "
                "--reasoning-effort-map.",
            )
        return off if mapped == "none" else {EFFORT: mapped}


def _template_names(
    conversation: Conversation, renderer: ChatRenderer | None
) -> tuple[Collection[str] | None, Collection[str]]:
    """Return the arguments that the chat template reads, None if unknown; and its texts."""
    names = getattr(renderer, "template_names", None)
    if names is None:
        return None, ()
    found: tuple[Collection[str], Collection[str]] = names(
        chat_template=conversation.chat_template, has_tools=bool(conversation.tools)
    )
    return found
