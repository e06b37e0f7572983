"""Runners, which implement what follows the model's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.contracts.models import Model, ModelSource, ModuleSpec
    from core.model_spec.decoder import DecoderSpec
    from core.step import NewRow, StepPlan, StepResult, WorkerInfo
    from core.types import SamplingParams
    from core.types.pooling import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingInfo,
        PoolingOutput,
        PoolingParams,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from core.types.prompts import Prompt


class StepRows(Protocol):
    """The rows of one step as a stage sees them.

    `counts[i]` consecutive hidden states belong to row `rows[i]`.
    """

    @property
    def rows(self) -> list[int]:
        """Rows that compute."""

    @property
    def starts(self) -> list[int]:
        """Position of each row's first token in the step."""

    @property
    def counts(self) -> list[int]:
        """Number of tokens of each row."""

    @property
    def samples(self) -> list[int]:
        """Indices into `rows` of the rows that sample."""

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens] int64."""


class RunnerBatch(Protocol):
    """The worker's rows as a stage sees them."""

    requests: list[NewRow | None]
    """Requests by row."""
    token_ids: torch.Tensor
    """[max_num_seqs + 1, max_model_len] int64, on the device; the last row is
    padding.
    """
    tables: torch.Tensor
    """[KV groups, max_num_seqs + 1, max blocks] int32, on the device: the
    block tables.

    Entries after a row's last block are stale.
    """
    next_positions: torch.Tensor
    """[max_num_seqs + 1] int64, on the device: the position each row's next
    step computes first.

    Up to date for worker halves with `begin` or `sampled`, and while draft tokens are
    in flight.
    """


class Pending(Protocol):
    """A step's result that is still on the device; made by
    `StageParts.result`.
    """

    rows: list[int]
    """Rows that sampled."""
    tokens: torch.Tensor | None
    """[n] int64, parallel to `rows`."""
    finite: torch.Tensor | None
    """[n] bool: False for rows with NaN or infinite logits."""
    possible: torch.Tensor | None
    """[n] bool: False for rows without any allowed token."""
    pooled: dict[int, torch.Tensor]
    """Pooled outputs, by row."""

    def get(self) -> StepResult:
        """Wait for the device and return plain data."""


class Stage(Protocol):
    """The second half of a step, from hidden states to results.

    Must not read device values back to the host.
    """

    def added(self, new: NewRow) -> str | None:
        """A request enters a row; return an error message if it failed."""

    def removed(self, row: int) -> None:
        """The request has left its row."""

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return the token type ids of the step (1 in a second text); None: all are 0."""

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Pending:
        """Return the step's result (`StageParts.result`) for hidden states
        [num_tokens, hidden].

        It holds `errors`, and for its rows either `tokens`, `finite` and `possible`, or
        `pooled`. All methods run in the order of the device's work.
        """

    def write_tokens(self, inputs: StepRows, tokens: torch.Tensor) -> None:
        """Store the tokens that the last pipeline stage sampled. Replaces
        `run` on other stages.

        With draft tokens there are several per row, one per entry.
        """


@dataclass(frozen=True, slots=True)
class StageParts:
    """The arguments of `Runner.stage`."""

    config: EngineConfig
    spec: Any
    """The model as `Runner.adapt_spec` returned it."""
    model: Model
    batch: RunnerBatch
    extensions: Any
    """Calls the worker halves of features around sampling."""
    is_last: bool
    """True on the last pipeline stage, the only one that runs the stage."""
    device: str
    result: Callable[..., Pending]
    """Makes a `Pending`; keywords: step, errors, rows."""
    ops: Any
    """Op implementations of the model (`BuildContext.ops`)."""
    hf_config: Any = None
    """`ModelSource.hf_config`."""


class RunnerFrontend(Protocol):
    """The frontend as a runner's pooling calls see it."""

    @property
    def source(self) -> ModelSource:
        """The checkpoint."""

    @property
    def renderer(self) -> Any:
        """Renders prompts to token ids."""

    @property
    def admission(self) -> Any:
        """Has the model's `limits`."""

    @property
    def info(self) -> WorkerInfo:
        """Facts from the worker's start."""


class PoolingCalls(Protocol):
    """The pooling methods of `LLM` for a runner; parameters and options
    belong to the runner.
    """

    def prepare(
        self, prompt: Any, params: PoolingParams, name: str | None, stopped: Callable[[], bool]
    ) -> list[tuple[Prompt, PoolingParams]]:
        """Return the requests to run for one prompt of `AsyncLLM.encode`.

        `stopped` returns True once the client has left.
        """

    def combine(
        self, outputs: Sequence[PoolingRequestOutput[PoolingOutput]]
    ) -> PoolingRequestOutput[PoolingOutput]:
        """Return the outputs of those requests as one."""

    def encode(self, *given: Any, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return tensors for prompts."""

    def embed(self, *given: Any, **options: Any) -> list[EmbeddingRequestOutput]:
        """Return an embedding for each prompt."""

    def classify(self, *given: Any, **options: Any) -> list[ClassificationRequestOutput]:
        """Return the label probabilities of each prompt."""

    def reward(self, *given: Any, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return the scores of tokens or steps of each prompt."""

    def score(self, *given: Any, **options: Any) -> list[ScoringRequestOutput]:
        """Return the similarity of each pair of texts."""


class Runner(Protocol):
    """What a model is run for (`--runner`). Constructed with the registry.

    Optional: `beam_search`, for `LLM.beam_search`, with (frontend, `LLM.generate`, prompts as token
    ids, parameters, progress bar, number of prompts at a time, keywords).

    Imports torch in `stage` only. The first runner by priority with an `adapt_spec`
    that accepts the model runs it. In the worker its stage follows the layers; in the
    frontend it reads the parameters of requests.
    """

    generates: bool
    """True: requests generate tokens; False: they end with their prompts."""

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return architectures with the same layers, for an architecture without an entry."""

    def adapt_spec(
        self, spec: DecoderSpec | ModuleSpec, config: EngineConfig, source: ModelSource
    ) -> DecoderSpec | ModuleSpec | None:
        """Return the model as this runner builds it; None: another runner
        must take it.

        Raises `ConfigError` for settings the model cannot meet, `ModelError` for files
        that contradict each other.
        """

    def adapt_config(self, config: EngineConfig, spec: DecoderSpec | ModuleSpec) -> EngineConfig:
        """Return the configuration adapted to the model."""

    def pooling_info(self, spec: DecoderSpec | ModuleSpec) -> PoolingInfo | None:
        """Return the pooling tasks of the model, for request validation; None: it generates."""

    def stage(self, parts: StageParts) -> Stage:
        """Return the second half of this rank's steps."""

    def read_params(
        self, info: PoolingInfo | None, params: SamplingParams | PoolingParams
    ) -> tuple[PoolingParams | None, SamplingParams]:
        """Return the complete parameters of a request.

        Raises `InvalidRequest` for those of another runner.
        """

    def pooling_calls(
        self, frontend: RunnerFrontend, run: Callable[..., Any] | None
    ) -> PoolingCalls:
        """Return the pooling methods. Raises `InvalidRequest` for a model
        that generates.

        `run` computes prepared prompts; its arguments are prompts, parameters, a
        progress bar, priorities, and keywords that features read.
        """
