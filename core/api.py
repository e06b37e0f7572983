"""Everything plugin code may import, besides `core.nn` and `core.ops` for models and kernels.

What is here is promised: it changes only with `API_VERSION`, after a warning of one minor version.
Importing this module imports no torch.
"""

from core.config import EngineConfig
from core.contracts import (
    Architecture,
    AttentionBackend,
    AttentionInputs,
    AttentionParams,
    BuildContext,
    ChatRenderer,
    Command,
    Executor,
    ForwardBatch,
    LinearMethod,
    LogitsProcessor,
    MetricSink,
    Model,
    ModelSource,
    ModuleSpec,
    Platform,
    QuantMethod,
    QueuedRequest,
    RequestStats,
    RouteGroup,
    RunnerExtension,
    SamplerContext,
    SampleRows,
    SchedulerExtension,
    SchedulingPolicy,
    Server,
    StepStats,
    Tokenizer,
    WeightLoader,
)
from core.errors import (
    ConfigError,
    EngineDead,
    EngineError,
    InvalidRequest,
    ModelError,
    PluginError,
    RequestFailed,
    did_you_mean,
)
from core.kv_spec import ChunkedLocal, FullAttention, KVLayout, KVSpec, LayerKV, SlidingWindow
from core.model_facts import ModelFacts
from core.model_spec import (
    AttentionSpec,
    DecoderSpec,
    DynamicScaling,
    LayerSpec,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    MlpSpec,
    MoeSpec,
    NormSpec,
    RopeSpec,
    WeightNames,
    YarnScaling,
)
from core.plugin.entry import API_VERSION, Entry, Option, hookimpl, hookspec
from core.step import EngineRequest, Logprobs, NewRow, RequestDelta, StepPlan, StepResult, WorkerInfo
from core.types import CompletionOutput, RequestOutput, SamplingParams

__all__ = [name for name in dir() if not name.startswith("_")]
