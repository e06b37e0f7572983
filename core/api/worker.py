"""What a runner's stage shares with the worker. Imports torch."""

from core.worker.batch import NO_LOGPROBS, InputBatch
from core.worker.extensions import Extensions
from core.worker.inputs import Ints, StepInputs
from core.worker.result import PendingResult

__all__ = [
    "NO_LOGPROBS",
    "Extensions",
    "InputBatch",
    "Ints",
    "PendingResult",
    "StepInputs",
]
