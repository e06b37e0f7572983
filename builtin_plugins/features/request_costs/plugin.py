"""The option `--request-costs`, and the three halves of the feature."""

from __future__ import annotations

from typing import Any

from core.api import EngineConfig, Option, hookimpl


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Measure what each request costs, and report it as `cost` in the usage of answers, as "
        "metrics, and in /explain: processor seconds of its steps, KV bytes times seconds, and "
        "computed tokens."
    )
    return [Option("request_costs", bool, False, text)]


@hookimpl
def engine_admission_extensions(config: EngineConfig) -> list[Any]:
    if not config.options.get("request_costs"):
        return []
    from builtin_plugins.features.request_costs.admission import Admission  # lazy: quick start

    return [Admission()]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig) -> list[Any]:
    if not config.options.get("request_costs"):
        return []
    from builtin_plugins.features.request_costs.scheduling import CostAccounts  # lazy: quick start

    return [CostAccounts()]


@hookimpl
def engine_runner_extensions(config: EngineConfig) -> list[Any]:
    if not config.options.get("request_costs"):
        return []
    from builtin_plugins.features.request_costs.worker import StepMeter  # lazy: quick start

    return [StepMeter()]
