"""`/v1/models`, `/v1/completions` and `/v1/chat/completions`, as OpenAI's clients call them."""

from __future__ import annotations

from typing import Annotated, Any, Final

from core.api import EngineConfig, Entry, Option, Range, Registry, hookimpl

FORMATS: Final = {"tool_call_parser": "tool_parsers", "reasoning_parser": "reasoning_parsers"}
"""Kind of entries that an option names."""


@hookimpl
def engine_routes() -> list[Entry]:
    target = "builtin_plugins.routes.openai.routes:OpenAIRoutes"
    return [Entry("openai", target, "models, completions, chat completions", requires=("fastapi",))]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    for option, kind in FORMATS.items():
        if name := config.options.get(option):
            registry.choose(kind, name)


@hookimpl
def engine_options() -> list[Option]:
    return [
        *_answer_options(),
        *_format_options(),
        Option(
            "stream_resume_timeout",
            Annotated[float, Range(0.0, 86400.0)],
            0.0,
            "Seconds for which the stream of a chat or response goes on after its client has "
            "disconnected, so that it can be continued. 0 ends it at once.",
        ),
        Option(
            "trust_request_chat_template",
            bool,
            False,
            "Let requests bring their own chat template.",
        ),
    ]


def _answer_options() -> list[Option]:
    """Return the options of what answers contain."""
    return [
        Option("response_role", str, "assistant", "Role of generated chat messages."),
        Option(
            "enable_prompt_tokens_details",
            bool,
            False,
            "Say in `usage` how many prompt tokens were cached.",
        ),
        Option(
            "enable_force_include_usage",
            bool,
            False,
            "End every stream with `usage`, even if the request does not ask for it.",
        ),
        Option(
            "enable_per_request_metrics",
            bool,
            False,
            "Add the times of a request to its answer, as `metrics`; of streams to the chunk with "
            "the usage.",
        ),
        Option(
            "return_tokens_as_token_ids",
            bool,
            False,
            "Spell tokens of log-probabilities as `token_id:N`.",
        ),
    ]


def _format_options() -> list[Option]:
    """Return the options of tool calls and reasoning."""
    return [
        Option(
            "enable_auto_tool_choice", bool, False, "Let the model decide whether to call a tool."
        ),
        Option(
            "tool_call_parser",
            str | None,
            None,
            "How the model writes tool calls: name of a tool call parser.",
        ),
        Option(
            "reasoning_parser",
            str,
            "",
            "How the model marks its reasoning: name of a reasoning parser.",
        ),
        Option(
            "reasoning_effort_map",
            dict[str, Any],
            {},
            "What a reasoning effort of requests means: another effort, or an object of chat "
            "template arguments, by effort.",
        ),
        Option(
            "exclude_tools_when_tool_choice_none",
            bool,
            False,
            "Leave tools out of prompts that must not call any.",
        ),
        Option(
            "tool_parser_plugin",
            str,
            "",
            "A plugin file that brings the tool call parser.",
            names_plugin=True,
        ),
        Option(
            "reasoning_parser_plugin",
            str | None,
            None,
            "A plugin file that brings the reasoning parser.",
            names_plugin=True,
        ),
    ]
