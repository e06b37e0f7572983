"""Contracts of a feature's extensions in admission and scheduler, and the names they read."""

from core.contracts.admission import (
    AdmissionContext,
    AdmissionExtension,
    PendingRequest,
    llm_methods,
)
from core.contracts.scheduling import (
    QueuedRequest,
    RunningRows,
    SchedulerExtension,
    SchedulingPolicy,
)
from core.types.bounds import MAX_ITEM_CHARS, Bound
from core.types.plugin_params import KnownNames, Unsupported

__all__ = [
    "MAX_ITEM_CHARS",
    "AdmissionContext",
    "AdmissionExtension",
    "Bound",
    "KnownNames",
    "PendingRequest",
    "QueuedRequest",
    "RunningRows",
    "SchedulerExtension",
    "SchedulingPolicy",
    "Unsupported",
    "llm_methods",
]
