"""The pooling runner: resolves a model's pooling, validates requests, builds the stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from builtin_plugins.runners.pooling import pooler_config, resolve
from builtin_plugins.runners.pooling.calls import LLMPoolingCalls
from builtin_plugins.runners.pooling.prompts import PoolingPrompts
from core.api import (
    EngineConfig,
    InvalidRequest,
    PoolingParams,
    Registry,
    RequestOutputKind,
    SamplingParams,
)
from core.api.execution import Stage, StageParts
from core.api.models import ModelSource
from core.api.outputs import PoolingInfo


class Pooling:
    """Runs pooling models, and models that the user converts."""

    generates = False

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return the generating architectures with the same layers as a bare model or
        classifier.
        """
        return resolve.aliases(architecture)

    def adapt_spec(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the spec with its pooling resolved."""
        return resolve.adapt_spec(spec, config, source, self._registry)

    def adapt_config(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Return the config without chunked prefill and prefix caching for bidirectional models."""
        return resolve.adapt_config(config, spec)

    def pooling_info(self, spec: Any) -> PoolingInfo:
        """Return the tasks and sizes of the model."""
        return resolve.pooling_info(spec, self._registry)

    def stage(self, parts: StageParts) -> Stage:
        """Return the pooling stage with the model's poolers."""
        from builtin_plugins.runners.pooling.stage import (
            PoolingStage,
        )  # lazy: torch is slow to import

        spec = parts.spec.pooling
        registry = self._registry
        names = ("all",) if spec.head_before_pooling else spec.poolers
        made = [
            registry.make(registry.choose("poolers", name), parts.config)
            for name in (*names, spec.token_pooler)
        ]
        return PoolingStage(parts, made[:-1], made[-1])

    def read_params(
        self, info: PoolingInfo | None, params: Any
    ) -> tuple[PoolingParams, SamplingParams]:
        """Return validated parameters of a request."""
        assert info is not None, "a pooling model has pooling info"
        return to_sampling_params(info, params)

    def pooling_calls(self, frontend: Any, run: Callable[..., Any] | None) -> LLMPoolingCalls:
        """Return the pooling methods of `LLM`."""
        max_prompt_len = frontend.admission.limits.max_prompt_len
        splitter = pooler_config.text_splitter(frontend.config, max_prompt_len)
        longest = max_prompt_len if splitter is None else splitter.max_tokens
        info = frontend.info.pooling
        prompts = PoolingPrompts(
            frontend.renderer,
            frontend.source.sentence,
            max_prompt_len,
            longest,
            frontend.admission.read_messages,
            () if info is None else info.pair_end_ids,
        )
        return LLMPoolingCalls(prompts, info, run, splitter)


def to_sampling_params(info: PoolingInfo, params: Any) -> tuple[PoolingParams, SamplingParams]:
    """Return completed pooling parameters and matching sampling parameters.

    Raises `InvalidRequest` for unsupported tasks and for requests of other runners.
    """
    if not isinstance(params, PoolingParams):
        raise InvalidRequest(
            "sampling_params",
            "this engine runs --runner pooling and generates no tokens; use embed, classify or "
            "score.",
        )
    task = params.task or info.tasks[0]
    if task not in info.tasks:
        raise InvalidRequest("task", f"got {task!r}; this model supports {', '.join(info.tasks)}.")
    _check_dimensions(info, task, params.dimensions)
    for column in params.returned_token_ids or ():
        if column >= info.size:
            raise InvalidRequest(
                "returned_token_ids", f"{column} is outside the {info.size} columns of the scores."
            )
    fresh = task in info.needs_whole_prompt or bool(params.skip_reading_prefix_cache)
    sampling = SamplingParams(
        max_tokens=1,
        detokenize=False,
        ignore_eos=True,
        truncate_prompt_tokens=params.truncate_prompt_tokens,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=fresh,
    )
    step = info.step_tag_id if params.step_tag_id is None else params.step_tag_id
    return params.clone(task=task, step_tag_id=step), sampling


def _check_dimensions(info: PoolingInfo, task: str, size: int | None) -> None:
    if size is None:
        return
    if not task.endswith("embed"):
        raise InvalidRequest(
            "dimensions", f"only embeddings can be truncated, not the output of {task!r}."
        )
    if not info.matryoshka:
        raise InvalidRequest(
            "dimensions",
            "this model does not support truncated embeddings (is_matryoshka in its config.json).",
        )
    if size > info.size:
        raise InvalidRequest("dimensions", f"got {size}; an embedding has {info.size} numbers.")
    if info.dimensions and size not in info.dimensions:
        raise InvalidRequest(
            "dimensions", f"must be one of {', '.join(map(str, info.dimensions))}, not {size}."
        )
