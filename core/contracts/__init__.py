"""The contracts: one protocol per kind. An entry's target, once imported, must satisfy its kind's
protocol.

Torch appears in annotations only, so that reading a contract never imports it. Every kind has a
conformance suite of its name in `core.testing.conformance`.
"""

from builtin_plugins.output_parsers.runtime import ReasoningFormat, ToolFormat
from core.contracts.admission import AdmissionExtension, Draft, Edge
from core.contracts.attention import (
    AttentionBackend,
    AttentionInputs,
    AttentionParams,
    ForwardBatch,
)
from core.contracts.clients import Client, EngineStatus, Listener, Running
from core.contracts.grammar import Grammar, GrammarBackend, GrammarState, Vocabulary
from core.contracts.kv_connectors import (
    BlockKey,
    KVConnector,
    KVDirectory,
    KVMemory,
    KVStore,
    KVTransferConfig,
    RemoteKVConnector,
    RemoteKVDirectory,
    RemoteKVStore,
    StoreParts,
)
from core.contracts.kv_eviction import EvictionOrder, FreeBlocks, KVEviction, Retention
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
from core.contracts.part import Part
from core.contracts.platforms import Executor, Platform
from core.contracts.pooling import Pooler
from core.contracts.processes import Kept, Parent
from core.contracts.quantization import EmbeddingMethod, ExpertsMethod, LinearMethod, QuantMethod
from core.contracts.registry import Registry
from core.contracts.runners import Calls, Pending, Runner, RunnerBatch, Stage, StageParts, StepRows
from core.contracts.sampling import LogitsProcessor, SamplerContext, SampleRows
from core.contracts.scheduling import (
    MayStart,
    QueuedRequest,
    RunnerExtension,
    SchedulerExtension,
    SchedulingPolicy,
)
from core.contracts.serving import (
    CallStats,
    Command,
    HttpStats,
    MetricSink,
    RequestStats,
    RouteGroup,
    Server,
    ServerActivity,
    StepStats,
    TokenStats,
)
from core.contracts.speculators import DraftRow, SpeculativeConfig, Speculator
from core.contracts.text import ChatRenderer, Tokenizer
from core.contracts.token_trees import TokenTree
from core.contracts.workers import Worker

__all__ = [
    "AdmissionExtension",
    "Architecture",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionParams",
    "BlockKey",
    "BuildContext",
    "CallStats",
    "Calls",
    "ChatRenderer",
    "Client",
    "Command",
    "Draft",
    "DraftRow",
    "Edge",
    "EmbeddingMethod",
    "EngineStatus",
    "EvictionOrder",
    "Executor",
    "ExpertsMethod",
    "ForwardBatch",
    "FreeBlocks",
    "GeneratingModel",
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "HttpStats",
    "KVConnector",
    "KVDirectory",
    "KVEviction",
    "KVMemory",
    "KVStore",
    "KVTransferConfig",
    "Kept",
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
    "Parent",
    "Part",
    "Pending",
    "Pipeline",
    "Platform",
    "Pooler",
    "PoolingModel",
    "QuantMethod",
    "QueuedRequest",
    "ReasoningFormat",
    "Registry",
    "RemoteKVConnector",
    "RemoteKVDirectory",
    "RemoteKVStore",
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
    "Server",
    "ServerActivity",
    "SpeculativeConfig",
    "Speculator",
    "Stage",
    "StageParts",
    "StepRows",
    "StepStats",
    "StoreParts",
    "TokenStats",
    "TokenTree",
    "Tokenizer",
    "ToolFormat",
    "Vocabulary",
    "WeightLoader",
    "Worker",
]
