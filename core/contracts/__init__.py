"""The contracts: one protocol per kind. An entry's target, once imported, must satisfy its kind's protocol.

Torch appears in annotations only, so that reading a contract never imports it. Every kind has a conformance
suite of its name in `core.testing.conformance`.
"""

from core.contracts.attention import AttentionBackend, AttentionInputs, AttentionParams, ForwardBatch
from core.contracts.grammar import Grammar, GrammarBackend, GrammarState
from core.contracts.models import (
    Architecture,
    BuildContext,
    GeneratingModel,
    LinearMethod,
    Model,
    ModelSource,
    ModuleSpec,
    PoolingModel,
    QuantMethod,
    WeightLoader,
)
from core.contracts.platforms import Executor, Platform
from core.contracts.pooling import Pooler
from core.contracts.runners import Calls, Runner, RunnerBatch, Stage, StageParts, StepRows
from core.contracts.sampling import AdmissionExtension, LogitsProcessor, SamplerContext, SampleRows
from core.contracts.scheduling import MayStart, QueuedRequest, RunnerExtension, SchedulerExtension, SchedulingPolicy
from core.contracts.serving import (
    Command,
    HttpStats,
    MetricSink,
    OpImplementation,
    RequestStats,
    RouteGroup,
    Server,
    ServerActivity,
    StepStats,
    TokenStats,
)
from core.contracts.text import ChatRenderer, Tokenizer
from core.parsing import ReasoningFormat, ToolFormat

__all__ = [
    "AdmissionExtension",
    "Architecture",
    "AttentionBackend",
    "AttentionInputs",
    "AttentionParams",
    "BuildContext",
    "Calls",
    "ChatRenderer",
    "Command",
    "Executor",
    "ForwardBatch",
    "GeneratingModel",
    "Grammar",
    "GrammarBackend",
    "GrammarState",
    "HttpStats",
    "LinearMethod",
    "LogitsProcessor",
    "MayStart",
    "MetricSink",
    "Model",
    "ModelSource",
    "ModuleSpec",
    "OpImplementation",
    "Platform",
    "Pooler",
    "PoolingModel",
    "QuantMethod",
    "QueuedRequest",
    "ReasoningFormat",
    "RequestStats",
    "RouteGroup",
    "Runner",
    "RunnerBatch",
    "RunnerExtension",
    "SampleRows",
    "SamplerContext",
    "SchedulerExtension",
    "SchedulingPolicy",
    "Server",
    "ServerActivity",
    "Stage",
    "StageParts",
    "StepRows",
    "StepStats",
    "TokenStats",
    "Tokenizer",
    "ToolFormat",
    "WeightLoader",
]
