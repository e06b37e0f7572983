"""The runner of generating models: hidden states to logits to the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from builtin_plugins.runners.generate.beam_search import search_beams
from core.api import ConfigError, EngineConfig, InvalidRequest, Registry, SamplingParams
from core.api.execution import PoolingCalls, Stage, StageParts
from core.api.models import ModelSource
from core.api.outputs import require_sampling_params
from core.api.sampling import BeamSearchOutput, SamplerContext, logits_processors

if TYPE_CHECKING:
    from core.api import PoolingParams
    from core.api.models import GeneratingModel


class GenerateRunner:
    """Runs every model that generates tokens."""

    generates = True

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def aliases(self, architecture: str) -> Sequence[str]:
        """Return no aliases: another architecture would generate other tokens."""
        return ()

    def adapt_spec(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the spec unchanged; None if another runner is requested."""
        requested = config.model.runner
        if requested not in ("auto", "generate"):
            return None
        if getattr(spec, "pooling", None) is not None:
            name = source.architecture
            known = [r.entry.name for r in self._registry.entries("runners")]
            raise ConfigError(
                f"--runner {requested}: {name!r} generates no tokens; "
                f"loaded runners: {', '.join(known)}."
            )
        return spec

    def adapt_config(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Return the configuration unchanged."""
        return config

    def pooling_info(self, spec: Any) -> None:
        """Return None: a generating model has no pooling tasks."""

    def beam_search(self, *given: Any) -> list[BeamSearchOutput]:
        """Return the best beams of each prompt; parameters as in `search_beams`."""
        return search_beams(*given)

    def stage(self, parts: StageParts) -> Stage:
        """Return the sampler of this rank."""
        from builtin_plugins.runners.generate.processors import (  # lazy: torch is slow to import
            Active,
            Processors,
        )
        from builtin_plugins.runners.generate.sampler import Sampler

        config = parts.config
        registry = self._registry
        context = SamplerContext(
            parts.model.vocab_size,
            config.scheduler.max_num_seqs or 1,
            config.model.max_model_len or 1,
            parts.device,
            parts.hf_config,
        )
        entries = logits_processors(config, registry) if parts.is_last else ()
        made = (registry.make(registered, context, config) for registered in entries)
        processors = Processors([Active(*each) for each in made])
        batch: Any = parts.batch
        model = cast("GeneratingModel", parts.model)
        stage = Sampler(
            model, batch, processors, parts.extensions, config.model.logprobs_mode, parts.ops
        )
        return cast(Stage, stage)

    def read_params(self, info: object, params: Any) -> tuple[PoolingParams | None, SamplingParams]:
        """Return the sampling parameters unchanged; raises `InvalidRequest` for others."""
        return None, require_sampling_params(params)

    def pooling_calls(self, frontend: object, run: object) -> PoolingCalls:
        """Raise `InvalidRequest`: this engine was started with the wrong runner for pooling."""
        raise InvalidRequest(
            "runner",
            "this engine generates tokens; start it with --runner pooling (and perhaps --convert).",
        )
