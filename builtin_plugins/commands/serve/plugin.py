"""`engine serve`: the command and the memory limit of the API process."""

from __future__ import annotations

from typing import Annotated, Any

from core.api import EngineConfig, Entry, Option, Range, hookimpl
from core.api.config import Size


@hookimpl
def engine_commands() -> list[Entry]:
    """Return the command."""
    return [
        Entry("serve", "builtin_plugins.commands.serve.command:Serve", "serve a model over HTTP")
    ]


@hookimpl
def engine_add_hooks() -> list[Any]:
    from builtin_plugins.commands.serve import hookspecs  # lazy: called once

    return [hookspecs]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig) -> None:
    # lazy: start-up stays quick
    from builtin_plugins.commands.serve.shared_state import num_api_servers

    num_api_servers(config)


@hookimpl
def engine_options() -> list[Option]:
    """Return the options of API servers, of rank servers and of several models."""
    count = "Number of processes that serve the port, with the same engines; default: 1."
    text = (
        "Memory above which the API process restarts, without the engine; 0: no limit; "
        "default: a quarter of the machine's, 1 to 8 GiB."
    )
    return [
        Option("api_server_count", Annotated[int, Range(1, 256)] | None, None, count),
        Option("api_memory_limit", Annotated[Size, Range(0, 1 << 60)] | None, None, text),
        *_rank_servers(),
        *_several_models(),
    ]


def _rank_servers() -> list[Option]:
    """Return the options of one server per rank."""
    seconds = Annotated[float, Range(0.01, 1e6)]
    return [
        Option(
            "data_parallel_multi_port_external_lb",
            bool,
            False,
            "One server per rank, from --port on, and a supervisor that restarts them.",
        ),
        Option(
            "data_parallel_supervisor_port",
            Annotated[int, Range(1, 65535)],
            9256,
            "Port at which the supervisor reports the state of the servers (/health).",
        ),
        Option(
            "dp_supervisor_probe_interval_s",
            seconds,
            5.0,
            "Seconds between two probes of a rank's server.",
        ),
        Option(
            "dp_supervisor_probe_timeout_s",
            seconds,
            5.0,
            "Seconds after which a probe has failed.",
        ),
        Option(
            "dp_supervisor_probe_failure_threshold",
            Annotated[int, Range(1, 1000)],
            3,
            "Failed probes in a row after which a server is killed and started again.",
        ),
    ]


def _several_models() -> list[Option]:
    """Return the options of a server with several models."""
    keep_alive = (
        "Seconds without requests after which a model is unloaded; default: never. Its next "
        "request loads it again."
    )
    return [
        Option(
            "models_file",
            str | None,
            None,
            "YAML file of models to serve on one port: by name the model, or `model` and flags.",
        ),
        Option(
            "max_loaded_models",
            Annotated[int, Range(1, 1 << 16)] | None,
            None,
            "Largest number of models in memory; the least recently used one without open requests "
            "is unloaded for another; default: all.",
        ),
        Option("model_keep_alive", Annotated[float, Range(0, 1e9)] | None, None, keep_alive),
        Option(
            "max_model_queue",
            Annotated[int, Range(1, 1 << 24)],
            512,
            "Largest number of requests that wait for models to be loaded.",
        ),
    ]
