"""Runners: what a model is run for, and so what follows its layers in every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.contracts.models import Model, ModelSource, ModuleSpec
    from core.model_spec.decoder import DecoderSpec
    from core.step import NewRow, StepPlan, StepResult
    from core.text.prompts import Prompt
    from core.types import SamplingParams
    from core.types.pooled import (
        ClassificationRequestOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringRequestOutput,
    )
    from core.types.pooling import PoolingInfo, PoolingParams


class StepRows(Protocol):
    """The rows of one step, as a stage sees them: `counts[i]` hidden states belong to row
    `rows[i]`, in this order.
    """

    @property
    def rows(self) -> list[int]:
        """Rows that compute."""

    @property
    def starts(self) -> list[int]:
        """Position of each row's first token in the step."""

    @property
    def counts(self) -> list[int]:
        """Tokens of each row."""

    @property
    def samples(self) -> list[int]:
        """Indices into `rows` of those that reach the end of their tokens."""

    @property
    def positions(self) -> torch.Tensor:
        """[num_tokens] int64."""


class RunnerBatch(Protocol):
    """The worker's rows, as a stage sees them."""

    requests: list[NewRow | None]
    """By row."""
    token_ids: torch.Tensor
    """[max_num_seqs + 1, max_model_len] int64, on the device; the row behind the last is padding's.
    """
    tables: torch.Tensor
    """[KV groups, max_num_seqs + 1, most blocks] int32, on the device: the block tables; stale
    behind a row's blocks.
    """
    ends: torch.Tensor
    """[max_num_seqs + 1] int64, on the device: the position that each row's next step computes
    first.

    Kept up to date for worker halves that have `begin` or `sampled`, and wherever guesses are in
    flight.
    """


class Pending(Protocol):
    """What a step brings, while it is still on the device; `StageParts.result` makes it."""

    rows: list[int]
    """Those of `samples`."""
    tokens: torch.Tensor | None
    """[n] int64, parallel to `rows`."""
    finite: torch.Tensor | None
    """[n] bool: whether the row's numbers were numbers."""
    possible: torch.Tensor | None
    """[n] bool: whether anything was left to choose from."""
    pooled: dict[int, torch.Tensor]
    """By row: what a request gets whose end this is."""

    def get(self) -> StepResult:
        """Wait for the device and return plain data."""


class Stage(Protocol):
    """The second half of a step: what becomes of hidden states.

    Reads no device value back to the host.
    """

    def added(self, new: NewRow) -> str | None:
        """A request takes a row, for the first time or again; return why it failed, if it did."""

    def removed(self, row: int) -> None:
        """The request in `row` has left."""

    def token_types(self, inputs: StepRows) -> torch.Tensor | None:
        """Return which text of its prompt each token of the step belongs to; None where there is
        one.
        """

    def run(
        self, plan: StepPlan, inputs: StepRows, hidden: torch.Tensor, errors: dict[int, str]
    ) -> Pending:
        """Return the step's result (`StageParts.result`) for its hidden states [num_tokens,
        hidden].

        It has `errors`, and either a token, `finite` and `possible` for each of its rows, or
        `pooled`. Called in the order of the device's work, as all methods.
        """

    def take(self, inputs: StepRows, tokens: torch.Tensor) -> None:
        """Note the tokens of `samples`, which the last stage of a pipeline made. Called on the
        others instead of `run`.

        With guesses there are several for each: one for each point.
        """


@dataclass(frozen=True, slots=True)
class StageParts:
    """What a stage is made of."""

    config: EngineConfig
    spec: Any
    """As `Runner.settle` returned it."""
    model: Model
    batch: RunnerBatch
    extensions: Any
    """Calls the worker halves of features around sampling."""
    is_last: bool
    """This rank has the last layers: only it runs the stage."""
    device: str
    result: Callable[..., Pending]
    """Makes a `Pending`; keywords: step, errors, rows."""
    ops: Any
    """The implementations that the model was built with (`BuildContext.ops`)."""


class Calls(Protocol):
    """What `LLM` offers under these names, of a runner that does not generate; parameters and
    options are its own.
    """

    def ready(
        self, prompt: Any, params: PoolingParams, name: str | None, stopped: Callable[[], bool]
    ) -> list[tuple[Prompt, PoolingParams]]:
        """Return the requests that run for a prompt of `AsyncLLM.encode`; `stopped` says whether
        nobody waits any more.
        """

    def joined(
        self, outputs: Sequence[PoolingRequestOutput[PoolingOutput]]
    ) -> PoolingRequestOutput[PoolingOutput]:
        """Return their outputs as one."""

    def encode(self, *given: Any, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return tensors for prompts."""

    def embed(self, *given: Any, **options: Any) -> list[EmbeddingRequestOutput]:
        """Return an embedding for each prompt."""

    def classify(self, *given: Any, **options: Any) -> list[ClassificationRequestOutput]:
        """Return a probability of each label for each prompt."""

    def reward(self, *given: Any, **options: Any) -> list[PoolingRequestOutput[PoolingOutput]]:
        """Return scores of tokens or steps for each prompt."""

    def score(self, *given: Any, **options: Any) -> list[ScoringRequestOutput]:
        """Return how near the texts of each pair are."""


class Runner(Protocol):
    """What a model is run for (`--runner`). Constructed with the registry; imports torch in `stage`
    only.

    Of all runners the first, by priority, whose `settle` takes the model runs it: in the worker its
    stage follows the layers, at the edge it reads the parameters of requests.
    """

    generates: bool
    """Requests go on until their tokens end them; False: they end with their prompts."""

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return architectures with the same layers, for one that no plugin knows by its own name."""

    def settle(
        self, spec: DecoderSpec | ModuleSpec, config: EngineConfig, source: ModelSource
    ) -> DecoderSpec | ModuleSpec | None:
        """Return the model as this runner builds it; None where it is not for this runner, or the
        user wants another.

        Raises `ConfigError` for wishes the model cannot fulfil, `ModelError` for files that
        contradict each other.
        """

    def fit(self, config: EngineConfig, spec: DecoderSpec | ModuleSpec) -> EngineConfig:
        """Return the configuration as the model needs it here."""

    def info(self, spec: DecoderSpec | ModuleSpec) -> PoolingInfo | None:
        """Return what the model can do besides generating; requests are checked by it."""

    def stage(self, parts: StageParts) -> Stage:
        """Return the second half of this rank's steps."""

    def admit(
        self, info: PoolingInfo | None, params: SamplingParams | PoolingParams
    ) -> tuple[PoolingParams | None, SamplingParams]:
        """Return a request's parameters, complete.

        Raises `InvalidRequest` for those of another runner.
        """

    def calls(self, front: Any, run: Callable[..., Any] | None) -> Calls:
        """Return what users may ask for besides generating. Raises `InvalidRequest` where that is
        nothing.

        `front` has the `renderer`, the `source`, the worker's `info` and `admission.limits`; `run`
        computes prompts made ready, given parameters, a progress bar and priorities, and keywords
        that features read.
        """
