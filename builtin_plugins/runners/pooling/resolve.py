"""Resolves the pooling of a model: its architecture, then its files, then the user's flags.

The later of these wins. Knows no torch, no request and no model by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from builtin_plugins.runners.pooling.pooler_config import (
    apply_pooler_config,
    check_columns,
    load_poolers,
)
from core.api import ConfigError, EngineConfig, ModelError, Registry
from core.api.outputs import PoolingInfo
from core.model_spec.decoder import DecoderSpec
from core.model_spec.facts import ModelFacts
from core.model_spec.pooling import DenseSpec, PoolingSpec

if TYPE_CHECKING:
    from core.api.models import ModelSource, ModuleSpec
    from core.api.serving import Tokenizer
    from core.model_spec.names import WeightNames

GENERATING: Final = ("ForCausalLM", "LMHeadModel")
_SUFFIXES: Final[Mapping[str, PoolingSpec]] = {
    "ForSequenceClassification": PoolingSpec(task="classify", is_cross_encoder=True),
    "ForTokenClassification": PoolingSpec(task="classify", per_token=True),
    "ClassificationModel": PoolingSpec(task="classify", is_cross_encoder=True),
    "ForTextEncoding": PoolingSpec(task="embed"),
    "ForRewardModeling": PoolingSpec(task="embed"),
    "ForRewardModel": PoolingSpec(task="embed"),
    "EmbeddingModel": PoolingSpec(task="embed"),
    "Model": PoolingSpec(task="embed"),
}
"""Pooling of an architecture with this suffix, if its generating architecture is known.

vLLM's table of suffixes; longer ones come first.
"""
_CONVERTED: Final[Mapping[str, PoolingSpec]] = {
    "embed": PoolingSpec(task="embed"),
    "classify": PoolingSpec(task="classify", is_cross_encoder=True),
    "reward": PoolingSpec(task="classify", per_token=True, logits=True, output_activation="none"),
}


def aliases(architecture: str) -> list[str]:
    """Return the generating architectures with the same layers."""
    suffix = next((suffix for suffix in _SUFFIXES if architecture.endswith(suffix)), None)
    return (
        []
        if suffix is None
        else [architecture.removesuffix(suffix) + ending for ending in GENERATING]
    )


def adapt_spec(
    spec: DecoderSpec | ModuleSpec, config: EngineConfig, source: ModelSource, registry: Registry
) -> DecoderSpec | ModuleSpec | None:
    """Return the spec with its pooling resolved; None if the model generates.

    Raises `ConfigError` for unsupported flags and `ModelError` for contradicting files.
    """
    model = config.model
    name = source.architecture
    stated: PoolingSpec | None = getattr(spec, "pooling", None)
    by_name = None if name in {r.entry.name for r in registry.entries("models")} else _by_name(name)
    convert = config.options.get("convert", "auto")
    converted = _CONVERTED.get(convert)
    _check_flags(config, name, stated, by_name)
    pools = stated or (convert != "none" and (converted or by_name or source.sentence))
    if model.runner not in ("auto", "pooling") or (model.runner == "auto" and not pools):
        if config.options.get("pooler_config") and model.runner in ("auto", "generate"):
            raise ConfigError(
                f"--pooler-config: {name!r} generates tokens here; leave it out, or say --runner "
                "pooling."
            )
        return None
    if config.options.get("logits_processors"):
        raise ConfigError(
            "--logits-processors changes which tokens are chosen, and a pooled model makes none; "
            "leave it out."
        )
    if stated is None and not isinstance(spec, DecoderSpec) and not hasattr(spec, "pooling"):
        raise ConfigError(
            f"--runner pooling: the architecture {name!r} has no known pooling; remove the flag."
        )
    chosen = stated or converted or by_name or PoolingSpec()
    answers = getattr(source.hf_config, "classifier_from_token", None)
    if answers:
        chosen = _by_answers(answers, chosen, config, source, registry)
    if not chosen.head and chosen.task == "classify" and not chosen.logits:
        score = DenseSpec(
            name="score", width=ModelFacts(source.hf_config).num_labels(), bias=chosen.per_token
        )
        chosen = replace(chosen, head=(score,))
    chosen = _by_files(chosen, source)
    chosen = apply_pooler_config(chosen, config.options.get("pooler_config") or {}, registry)
    check_columns(chosen, size_of(spec, chosen))
    load_poolers(chosen, registry)
    resolved: dict[str, Any] = {"pooling": chosen}
    if stated is None and isinstance(spec, DecoderSpec):
        resolved["names"] = bare_names(spec.names)
    return replace(spec, **resolved)  # type: ignore[type-var]


def pooling_info(spec: Any, registry: Registry) -> PoolingInfo:
    """Return the tasks and sizes of a resolved model."""
    pooling: PoolingSpec = spec.pooling
    size = size_of(spec, pooling)
    many = "token_embed" if pooling.task == "embed" else "token_classify"
    one = (
        ()
        if pooling.per_token
        else (pooling.task, *(("score",) if pooling.task == "classify" and size == 1 else ()))
    )
    poolers, token_pooler = load_poolers(pooling, registry)
    tasks = (*one, many)
    causal = not getattr(spec, "bidirectional", False)
    every = pooling.head_before_pooling or any(each.needs_whole_prompt for each in poolers)
    whole = tuple(
        t
        for t in tasks
        if not causal or (token_pooler.needs_whole_prompt if t.startswith("token_") else every)
    )
    return PoolingInfo(
        tasks=tasks,
        size=size,
        matryoshka=pooling.matryoshka,
        dimensions=tuple(n for n in pooling.matryoshka_dimensions if n <= size),
        needs_whole_prompt=whole,
        step_tag_id=pooling.step_tag_id,
        pair_end_ids=pooling.pair_end_ids,
        is_cross_encoder=pooling.is_cross_encoder,
    )


def size_of(spec: Any, pooling: PoolingSpec) -> int:
    """Return the output width of a pooling model."""
    if pooling.answer_tokens is not None:
        return 1
    if pooling.head:
        return pooling.head[-1].width
    width: int = spec.vocab_size if pooling.logits else spec.hidden_size
    return width * len(pooling.poolers)


def adapt_config(config: EngineConfig, spec: Any) -> EngineConfig:
    """Return the config; bidirectional models need whole prompts."""
    if not getattr(spec, "bidirectional", False):
        return config
    return replace(
        config,
        scheduler=replace(config.scheduler, enable_chunked_prefill=False),
        cache=replace(config.cache, enable_prefix_caching=False),
    )


def bare_names(names: WeightNames) -> WeightNames:
    """Return the names with a rename for bare-model checkpoints, which omit the first prefix."""
    prefix, _, first = names.embed.partition(".")
    if not first:
        return names
    inner = {
        name.removeprefix(f"{prefix}.").partition(".")[0]
        for name in (names.embed, names.final_norm, names.layer)
    }
    inner |= (
        {names.positions.removeprefix(f"{prefix}.").partition(".")[0]} if names.positions else set()
    )
    rule = (rf"^(?={'|'.join(rf'{part}(?:[.]|$)' for part in sorted(inner))})", f"{prefix}.")
    return replace(names, rename=(*names.rename, rule))


def _check_flags(
    config: EngineConfig, name: str, stated: PoolingSpec | None, by_name: PoolingSpec | None
) -> None:
    """Raise `ConfigError` for a runner or conversion that the model does not support."""
    runner = config.model.runner
    convert = config.options.get("convert", "auto")
    if runner == "generate" and (stated or by_name):
        raise ConfigError(
            f"--runner generate: {name!r} has no head that makes tokens; leave it out, or say "
            "pooling."
        )
    if runner == "generate" and convert not in ("auto", "none"):
        raise ConfigError(
            f"--convert {convert} makes a pooling model, which --runner generate excludes; drop "
            "one."
        )
    if stated is not None and convert not in ("auto", "none", stated.task):
        raise ConfigError(
            f"--convert {convert}: {name!r} is for {stated.task!r} already; leave it out."
        )
    if runner == "pooling" and convert == "none" and stated is None:
        raise ConfigError(
            f"--convert none: {name!r} makes tokens, so nothing is left to pool; leave it out."
        )


def _by_name(architecture: str) -> PoolingSpec | None:
    if architecture.endswith(GENERATING):
        return None
    return next((spec for suffix, spec in _SUFFIXES.items() if architecture.endswith(suffix)), None)


def _by_answers(
    answers: Any, spec: PoolingSpec, config: EngineConfig, source: ModelSource, registry: Registry
) -> PoolingSpec:
    """Return the spec with a score by the logits of two answers, no and yes."""
    name = "classifier_from_token"
    if spec.task != "classify" or spec.per_token or spec.head:
        raise ModelError(
            f"{name}: got {answers!r:.80} for a model that pools otherwise; expected a generating "
            "model with --convert classify. Remove it."
        )
    mode = config.model.tokenizer_mode
    encoding = registry.choose("tokenizers", source.tokenizer if mode == "auto" else mode)
    tokenizer: Tokenizer | None = registry.load(encoding)(source, config)
    texts = answers if isinstance(answers, list) else []
    tokens = [
        tokenizer.encode(text, False)
        for text in texts
        if isinstance(text, str) and tokenizer is not None
    ]
    if len(tokens) != 2 or len(texts) != 2 or any(len(ids) != 1 for ids in tokens):
        raise ModelError(
            f"{name}: got {answers!r:.80}; expected two texts of one token each, such as "
            '["no", "yes"]. Correct it.'
        )
    (no,), (yes,) = tokens
    return replace(spec, logits=True, answer_tokens=(no, yes))


def _by_files(spec: PoolingSpec, source: ModelSource) -> PoolingSpec:
    """Return the spec with values of sentence-transformers' files and of config.json."""
    facts = ModelFacts(source.hf_config)
    sentence = source.sentence
    if spec.task == "classify":
        stated = sentence.output_activation if sentence is not None else None
        return replace(
            spec, output_activation=spec.output_activation or stated or _by_problem(facts)
        )
    sizes = facts.get("matryoshka_dimensions") or ()
    is_cut = facts.flag("is_matryoshka") or bool(sizes)
    spec = replace(
        spec,
        matryoshka=spec.matryoshka or is_cut,
        matryoshka_dimensions=spec.matryoshka_dimensions or tuple(sizes),
    )
    if sentence is None:
        return spec
    activation: Any = "normalize" if sentence.normalize else "none"
    return replace(
        spec,
        pooler=sentence.pooler or spec.pooler,
        head=(*spec.head, *sentence.dense),
        output_activation=activation,
    )


def _by_problem(facts: ModelFacts) -> Any:
    """Return the output activation of transformers' `problem_type`."""
    kinds = {
        "regression": "none",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
    }
    return kinds.get(facts.get("problem_type"))
