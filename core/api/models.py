"""Contracts of model architectures, weight loaders and attention backends.

Model descriptions, parallel groups and quantization methods are in `core.model_spec`, layers and
ops in `core.models`.
"""

from core.contracts.attention import AttentionBackend, AttentionInputs, ForwardBatch
from core.contracts.models import (
    Architecture,
    BuildContext,
    GeneratingModel,
    Model,
    ModelSource,
    ModuleSpec,
    WeightLoader,
)

__all__ = [
    "Architecture",
    "AttentionBackend",
    "AttentionInputs",
    "BuildContext",
    "ForwardBatch",
    "GeneratingModel",
    "Model",
    "ModelSource",
    "ModuleSpec",
    "WeightLoader",
]
