"""Contracts of model architectures, their layers' weights, attention backends
and ops.

Model descriptions are in `core.model_spec`, layers and ops in `core.models`.
"""

from core.contracts.attention import (
    AttentionBackend,
    AttentionInputs,
    AttentionParams,
    ForwardBatch,
    QkNormRope,
)
from core.contracts.models import (
    Architecture,
    BuildContext,
    GeneratingModel,
    Model,
    ModelSource,
    ModuleSpec,
    WeightLoader,
)
from core.contracts.parallel import ParallelGroup, Pipeline
from core.contracts.quantization import EmbeddingMethod, ExpertsMethod, LinearMethod, QuantMethod

__all__ = [
    "Architecture",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionParams",
    "BuildContext",
    "EmbeddingMethod",
    "ExpertsMethod",
    "ForwardBatch",
    "GeneratingModel",
    "LinearMethod",
    "Model",
    "ModelSource",
    "ModuleSpec",
    "ParallelGroup",
    "Pipeline",
    "QkNormRope",
    "QuantMethod",
    "WeightLoader",
]
