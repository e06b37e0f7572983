"""The runner of models that generate: hidden states become logits, and these the next token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from core.config import EngineConfig
from core.contracts import Calls, ModelSource, SamplerContext, Stage, StageParts
from core.errors import ConfigError, InvalidRequest
from core.plugin import Registry
from core.plugin.named_processors import logits_processors
from core.types import SamplingParams
from core.types.sampling import require_sampling_params

if TYPE_CHECKING:
    from core.contracts import GeneratingModel
    from core.types.pooling import PoolingParams


class Generate:
    """Takes every model that makes tokens."""

    generates = True

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def aliases(self, architecture: str) -> Sequence[str]:
        """A model of other layers than its name says would make other tokens."""
        return ()

    def settle(self, spec: Any, config: EngineConfig, source: ModelSource) -> Any:
        """Return the spec as it is."""
        wanted = config.model.runner
        if wanted not in ("auto", "generate"):
            return None
        if getattr(spec, "pooling", None) is not None:
            name = source.architecture
            known = [r.entry.name for r in self._registry.entries("runners")]
            raise ConfigError(
                f"--runner {wanted}: {name!r} makes no tokens; loaded runners: {', '.join(known)}."
            )
        return spec

    def fit(self, config: EngineConfig, spec: Any) -> EngineConfig:
        """Nothing is to be changed."""
        return config

    def info(self, spec: Any) -> None:
        """It generates, and nothing else."""

    def stage(self, parts: StageParts) -> Stage:
        """Return what samples."""
        from builtin_plugins.runners.generate.processors import (  # lazy: torch is slow to import
            Active,
            Processors,
        )
        from builtin_plugins.runners.generate.stage import SamplingStage

        config = parts.config
        registry = self._registry
        seqs = config.scheduler.max_num_seqs or 1
        length = config.model.max_model_len or 1
        context = SamplerContext(parts.model.vocab_size, seqs, length, parts.device)
        entries = logits_processors(config, registry) if parts.is_last else ()
        processors = Processors(
            [Active(*registry.make(registered, context, config)) for registered in entries]
        )
        batch: Any = parts.batch
        model = cast("GeneratingModel", parts.model)
        stage = SamplingStage(
            model, batch, processors, parts.extensions, config.model.logprobs_mode, parts.ops
        )
        return cast(Stage, stage)

    def admit(self, info: object, params: Any) -> tuple[PoolingParams | None, SamplingParams]:
        """Return sampling parameters as they are."""
        return None, require_sampling_params(params)

    def calls(self, front: object, run: object) -> Calls:
        """Raise `InvalidRequest`: whoever asks for them has started another runner than meant."""
        raise InvalidRequest(
            "runner",
            "this engine generates tokens; start it with --runner pooling (and perhaps --convert).",
        )
