"""Speculative decoding: the option, the methods, and what happens at admission, in the scheduler
and in the worker.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from builtin_plugins.speculators.settings import OPTION, settings_of
from builtin_plugins.speculators.stated import read_stated, verifier_of
from core.api import EngineConfig, Entry, Option, hookimpl

RENAMED = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_disable_by_batch_size": "disable_by_batch_size",
    "speculative_max_model_len": "max_model_len",
}
"""Flags of older vLLMs, and the key that took their place."""


@hookimpl
def engine_options() -> list[Option]:
    text = (
        "How tokens are guessed, for the model to check several in a step: method (ngram, suffix, "
        "draft_model), "
        "num_speculative_tokens, model, prompt_lookup_max, prompt_lookup_min, "
        "disable_by_batch_size and others."
    )
    old = [
        Option(
            name, str | None, None, "", refuse=f"is now --speculative-config '{{\"{key}\": ...}}'."
        )
        for name, key in RENAMED.items()
    ]
    return [Option(OPTION, dict[str, Any] | None, None, text), *old]


@hookimpl(tryfirst=True)
def engine_find_model(model: str, config: EngineConfig) -> str | None:
    """Return the model that a checkpoint in the format of `speculators` guesses for; its weights
    are a head's.
    """
    # Whoever reads the head itself says what its config is to be taken for.
    return None if config.model.hf_overrides else verifier_of(read_stated(model)) or None


@hookimpl
def engine_speculators() -> list[Entry]:
    home = "builtin_plugins.speculators"
    return [
        Entry(
            "ngram",
            f"{home}.ngram:NGram",
            "what followed the same tokens before, in the request's own text",
        ),
        Entry(
            "draft_model",
            f"{home}.draft_model:DraftModel",
            "what a small model of the same vocabulary says",
        ),
        Entry(
            "eagle", f"{home}.eagle:Eagle", "a layer that goes on from the model's hidden states"
        ),
        Entry(
            "eagle3",
            f"{home}.eagle3:Eagle3",
            "a layer that goes on from hidden states of three of the model's layers",
        ),
        Entry(
            "medusa",
            f"{home}.medusa:Medusa",
            "a head for each of the next tokens, behind the model's hidden state",
        ),
        Entry(
            "mlp_speculator",
            f"{home}.mlp_speculator:MlpSpeculator",
            "a small product of hidden state and token, again and again",
        ),
        Entry("mtp", f"{home}.mtp:Mtp", "the model's own layer for further tokens"),
        Entry(
            "suffix",
            f"{home}.suffix:Suffix",
            "what most often followed them there and in earlier outputs",
        ),
    ]


@hookimpl
def engine_admission_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.speculators.admission import Admission  # lazy: start-up stays quick

    settings = settings_of(config)
    if settings is None:
        return []
    registry.choose("speculators", settings.method)  # which names what there is
    return [Admission()]


@hookimpl
def engine_scheduler_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    from builtin_plugins.speculators.scheduling import Asker  # lazy: start-up stays quick

    settings = settings_of(config)
    return [] if settings is None else [Asker(config.scheduler.max_num_seqs or 1, settings.most)]


@hookimpl
def engine_runner_extensions(config: EngineConfig, registry: Any) -> list[Any]:
    settings = settings_of(config)
    if settings is None:
        return []
    from builtin_plugins.speculators.drafting import Drafting  # lazy: only workers need torch

    chosen = registry.choose("speculators", settings.method)
    speculator, explain = registry.make(chosen, config, settings, registry)
    told = partial(explain, request=None)
    if settings.tree is None:
        return [Drafting(speculator, settings, config.scheduler.max_num_seqs or 1, told)]
    from builtin_plugins.speculators.tree_drafting import TreeDrafting  # lazy: only trees need it

    return [TreeDrafting(speculator, settings, config, settings.tree, told)]
