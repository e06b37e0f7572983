"""The contracts: one protocol per kind, which the target of an entry must
satisfy.

Torch appears in annotations only, so importing a contract never imports it. Every kind
has a conformance suite of its name in `core.testing.conformance`.
"""

from core.contracts.admission import AdmissionContext, AdmissionExtension, PendingRequest
from core.contracts.attention import (
    AttentionBackend,
    AttentionInputs,
    AttentionParams,
    ForwardBatch,
    QkNormRope,
)
from core.contracts.clients import Client, EngineStatus, Listener, Running
from core.contracts.kv import EvictionOrder, FreeBlocks, KVEviction, Retention
from core.contracts.models import (
    Architecture,
    BuildContext,
    GeneratingModel,
    Model,
    ModelSource,
    ModuleSpec,
    PoolingModel,
    WeightLoader,
)
from core.contracts.ops import OpImplementation, OpTable
from core.contracts.parallel import ParallelGroup, Pipeline
from core.contracts.platforms import Platform
from core.contracts.quantization import EmbeddingMethod, ExpertsMethod, LinearMethod, QuantMethod
from core.contracts.registry import Registry
from core.contracts.runners import (
    Pending,
    Pooler,
    PoolingCalls,
    Runner,
    RunnerBatch,
    Stage,
    StageParts,
    StepRows,
)
from core.contracts.sampling import LogitsProcessor, SamplerContext, SampleRows
from core.contracts.scheduling import MayStart, QueuedRequest, SchedulerExtension, SchedulingPolicy
from core.contracts.serving import Command, RouteGroup, ServedEngine, Server, ServerActivity
from core.contracts.telemetry import (
    CallStats,
    HttpStats,
    MetricSink,
    RequestStats,
    StepStats,
    TokenStats,
)
from core.contracts.text import ChatRenderer, Tokenizer
from core.contracts.workers import Executor, RunnerExtension, Worker

__all__ = [
    "AdmissionContext",
    "AdmissionExtension",
    "Architecture",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionParams",
    "BuildContext",
    "CallStats",
    "ChatRenderer",
    "Client",
    "Command",
    "EmbeddingMethod",
    "EngineStatus",
    "EvictionOrder",
    "Executor",
    "ExpertsMethod",
    "ForwardBatch",
    "FreeBlocks",
    "GeneratingModel",
    "HttpStats",
    "KVEviction",
    "LinearMethod",
    "Listener",
    "LogitsProcessor",
    "MayStart",
    "MetricSink",
    "Model",
    "ModelSource",
    "ModuleSpec",
    "OpImplementation",
    "OpTable",
    "ParallelGroup",
    "Pending",
    "PendingRequest",
    "Pipeline",
    "Platform",
    "Pooler",
    "PoolingCalls",
    "PoolingModel",
    "QkNormRope",
    "QuantMethod",
    "QueuedRequest",
    "Registry",
    "RequestStats",
    "Retention",
    "RouteGroup",
    "Runner",
    "RunnerBatch",
    "RunnerExtension",
    "Running",
    "SampleRows",
    "SamplerContext",
    "SchedulerExtension",
    "SchedulingPolicy",
    "ServedEngine",
    "Server",
    "ServerActivity",
    "Stage",
    "StageParts",
    "StepRows",
    "StepStats",
    "TokenStats",
    "Tokenizer",
    "WeightLoader",
    "Worker",
]
