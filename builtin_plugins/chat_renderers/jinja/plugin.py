"""Renders conversations with the model's Jinja chat template, in a sandbox."""

from __future__ import annotations

from typing import Any

from core.api import Entry, Option, hookimpl


@hookimpl
def engine_chat_renderers() -> list[Entry]:
    target = "builtin_plugins.chat_renderers.jinja.renderer:JinjaRenderer"
    return [Entry("jinja", target, "the model's Jinja chat template", requires=("jinja2>=3.1.6",))]


@hookimpl
def engine_options() -> list[Option]:
    return [
        Option(
            "default_chat_template_kwargs",
            dict[str, Any],
            {},
            "Arguments of the chat template, for requests that do not set them.",
        ),
        Option(
            "chat_template_content_format",
            str,
            "auto",
            "Format of message content for the template: `string`, `openai` (a list of parts) or "
            "`auto` (detected).",
        ),
        Option(
            "allow_special_tokens_in_text",
            bool,
            False,
            "Read special tokens that messages, tools and documents spell as special tokens; "
            "default: as text.",
        ),
    ]
