"""Speculative decoding: the option, the shipped methods, and the halves of the feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from builtin_plugins.features.speculation.head_config import OPTION, read_head_config, verifier_of
from core.api import ConfigError, EngineConfig, Entry, Option, Range, Registry, hookimpl

if TYPE_CHECKING:
    from builtin_plugins.speculators.api import SpeculativeConfig

MAX_SPEC_TOKENS: Final = 64
"""Upper bound of `--spec-tokens`; that of `SpeculativeConfig`, which is slow to import."""
RENAMED = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "speculative_max_model_len": "max_model_len",
}
"""Flags of older vLLM versions, and the keys that replaced them."""


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "Speculative decoding: method (ngram, suffix, draft_model), num_speculative_tokens, model, "
        "prompt_lookup_max, prompt_lookup_min, disable_by_batch_size and others."
    )
    old = [
        Option(
            name, str | None, None, "", refuse=f"is now --speculative-config '{{\"{key}\": ...}}'."
        )
        for name, key in RENAMED.items()
    ]
    return [
        Option(OPTION, dict[str, Any] | None, None, text),
        Option("spec_method", str | None, None, "--speculative-config.method."),
        Option("spec_model", str | None, None, "--speculative-config.model: a folder or hub id."),
        Option(
            "spec_tokens",
            Annotated[int, Range(1, MAX_SPEC_TOKENS)] | None,
            None,
            "--speculative-config.num_speculative_tokens: draft tokens per step.",
        ),
        Option(
            "per_request_spec_decode_metrics",
            Literal["none", "summary"],
            "none",
            "Acceptance of draft tokens in answers, as `metrics.speculative_decoding`.",
        ),
        *old,
    ]


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> str | None:
    """Return the target model of a `speculators` checkpoint; its own weights are a head's."""
    # With `hf_overrides`, the head itself is being loaded.
    return None if config.model.hf_overrides else verifier_of(read_head_config(model)) or None


@hookimpl
def engine_speculators() -> list[Entry]:
    home = "builtin_plugins.speculators"
    return [
        Entry(
            "ngram",
            f"{home}.ngram:NGram",
            "prompt lookup in the request's own text",
        ),
        Entry(
            "draft_model",
            f"{home}.draft_model:DraftModel",
            "a small model with the same vocabulary",
        ),
        Entry(
            "eagle",
            f"{home}.eagle:Eagle",
            "a layer that continues the target's hidden states",
        ),
        Entry(
            "eagle3",
            f"{home}.eagle3:Eagle3",
            "a layer that continues the hidden states of three layers",
        ),
        Entry(
            "medusa",
            f"{home}.medusa:Medusa",
            "a head for each of the next tokens",
        ),
        Entry(
            "mlp_speculator",
            f"{home}.mlp_speculator:MlpSpeculator",
            "a recurrent MLP over the target's hidden state",
        ),
        Entry(
            "mtp",
            f"{home}.mtp:Mtp",
            "the multi-token prediction layer of the model's checkpoint",
        ),
        Entry(
            "suffix",
            f"{home}.suffix:Suffix",
            "frequent continuations in the request's text and earlier outputs",
        ),
    ]


@hookimpl(optionalhook=True)
def engine_check_settings(config: EngineConfig, registry: Registry) -> None:
    settings = _settings(config) if config.options.get(OPTION) else None
    if settings is not None:
        registry.choose("speculators", settings.method)


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    from builtin_plugins.features.speculation.admission import Admission  # lazy: faster start-up

    settings = _settings(config)
    if settings is None:
        if config.options.get("per_request_spec_decode_metrics", "none") != "none":
            raise ConfigError(
                "--per-request-spec-decode-metrics: got a value without speculative decoding, "
                "which it counts. Set --speculative-config, or remove it."
            )
        return []
    registry.choose("speculators", settings.method)  # raises for an unknown method
    return [Admission()]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    # lazy: faster start-up
    from builtin_plugins.features.speculation.scheduling import SpeculationScheduler

    settings = _settings(config)
    if settings is None:
        return []
    num_rows = config.scheduler.max_num_seqs or 1
    return [SpeculationScheduler(num_rows, settings.max_draft_tokens)]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Registry) -> list[Any]:
    settings = _settings(config)
    if settings is None:
        return []
    # lazy: only workers need torch
    from builtin_plugins.features.speculation.worker import SpeculationWorker

    chosen = registry.choose("speculators", settings.method)
    speculator, explain = registry.make(chosen, config, settings, registry)

    def explain_error(error: Exception) -> str:
        return explain(error, None)

    if settings.tree is None:
        num_rows = config.scheduler.max_num_seqs or 1
        return [SpeculationWorker(speculator, settings, num_rows, explain_error)]
    # lazy: only trees need it
    from builtin_plugins.features.speculation.tree_worker import TreeSpeculationWorker

    return [TreeSpeculationWorker(speculator, settings, config, settings.tree, explain_error)]


def _settings(config: EngineConfig) -> SpeculativeConfig | None:
    from builtin_plugins.features.speculation.settings import settings_of  # lazy: faster start-up

    return settings_of(config)
