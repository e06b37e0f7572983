"""Options of the output log, and its parts in the API process."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import EngineConfig, Entry, Option, Range, Registry, hookimpl

HOME = "builtin_plugins.features.output_log.admission"


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Log the text of each output when its request has ended, next to the line of the request."
    )
    return [
        Option("enable_log_outputs", bool, False, text, needs=("enable_log_requests",)),
        Option(
            "max_log_len",
            Annotated[int, Range(0, 1 << 40)] | None,
            None,
            "Characters of an output that are logged; default: all.",
            needs=("enable_log_outputs",),
        ),
    ]


@hookimpl
def engine_metric_sinks() -> list[Entry]:
    return [Entry("output_log", f"{HOME}:OutputSink", "a log line per output")]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    if not config.options.get("enable_log_outputs"):
        return []
    from builtin_plugins.features.output_log.admission import Admission  # lazy: quick start

    return [Admission(config)]
