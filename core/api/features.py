"""Contracts of a feature's extensions in admission and scheduler, and the
names they read.
"""

from core.contracts.admission import (
    AdmissionContext,
    AdmissionExtension,
    Call,
    PendingRequest,
    Variant,
    VariantSource,
    llm_methods,
    variant_sources,
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
    "Call",
    "KnownNames",
    "PendingRequest",
    "QueuedRequest",
    "RunningRows",
    "SchedulerExtension",
    "SchedulingPolicy",
    "Unsupported",
    "Variant",
    "VariantSource",
    "llm_methods",
    "variant_sources",
]
