"""Contracts of platforms, executors, workers and runners, and what crosses to a worker."""

from core.contracts.platforms import Platform
from core.contracts.runners import Pending, PoolingCalls, Runner, Stage, StageParts, StepRows
from core.contracts.workers import (
    Executor,
    LoadedParts,
    RunnerExtension,
    Sampled,
    Worker,
    WorkerParts,
)
from core.errors import LastStageFailed, ProcessFrozen, ProcessKilled, error_by_name
from core.step import (
    CallAnswer,
    EngineRequest,
    NewRow,
    RequestDelta,
    Span,
    StepOutputs,
    StepPlan,
    StepResult,
    WorkerInfo,
)

__all__ = [
    "CallAnswer",
    "EngineRequest",
    "Executor",
    "LastStageFailed",
    "LoadedParts",
    "NewRow",
    "Pending",
    "Platform",
    "PoolingCalls",
    "ProcessFrozen",
    "ProcessKilled",
    "RequestDelta",
    "Runner",
    "RunnerExtension",
    "Sampled",
    "Span",
    "Stage",
    "StageParts",
    "StepOutputs",
    "StepPlan",
    "StepResult",
    "StepRows",
    "Worker",
    "WorkerInfo",
    "WorkerParts",
    "error_by_name",
]
