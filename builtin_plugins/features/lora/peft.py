"""PEFT's adapter format: `adapter_config.json` (ranks, scales, targets) and the names of tensors.

Unsupported settings are rejected by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.features.lora.adapter_file import BadAdapter
from builtin_plugins.features.lora.module_patterns import ModulePatterns, expression, matches
from builtin_plugins.model_sources.api import Pattern
from core.api import did_you_mean

_KNOWN: Final = frozenset(
    {
        "peft_type",
        "task_type",
        "base_model_name_or_path",
        "revision",
        "inference_mode",
        "auto_mapping",
        "peft_version",
        "lora_dropout",
        "init_lora_weights",
        "fan_in_fan_out",
        "runtime_config",
        "megatron_core",
        "eva_config",
        "corda_config",
        "loftq_config",
        "exclude_modules",
        "layers_pattern",
        "qalora_group_size",
        "lora_ga_config",
        "r",
        "lora_alpha",
        "target_modules",
        "target_parameters",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "bias",
        "modules_to_save",
        "layers_to_transform",
        "lora_bias",
        "ensure_weight_tying",
    }
)
"""Supported keys, and keys that concern training only."""
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA rescales whole weights, which adapters in one batch cannot share",
    "use_qalora": "QA-LoRA pools the inputs of its products",
    "use_bdlora": "block-diagonal adapters are stored in another form",
    "layer_replication": "the adapter stands for a model with other layers",
    "alora_invocation_tokens": "an activated adapter begins in the middle of a prompt",
    "arrow_config": "Arrow mixes adapters token by token",
    "trainable_token_indices": "single rows of the embedding are replaced",
    "megatron_config": "it is split for Megatron",
    "velora_config": "it is stored in another form",
}
MAX_SCALE: Final = 1e30
"""Upper bound of a scale; products with a larger one are not finite."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The settings of an adapter."""

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    rank_keys: ModulePatterns
    alpha_keys: ModulePatterns
    targets: Pattern | tuple[str, ...] | None
    """Suffixes of module names, or a regex; None: all linear layers but the head."""
    modules_to_save: tuple[str, ...]
    layers: tuple[int, ...] | None
    """Numbers of the adapted layers; None: all."""
    bias: str
    base_model: str
    ties_embedding: bool
    """Whether an adapter of the embedding applies to a tied head, too."""

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> PeftConfig:
        """Return the settings. Raises `BadAdapter` naming what is not supported."""
        kind = config.get("peft_type", "LORA")
        if kind != "LORA":
            raise BadAdapter(
                f"peft_type: got {kind!r:.50}; expected LORA. Convert or merge the adapter."
            )
        for key, value in config.items():
            if key in _REFUSED and value:
                raise BadAdapter(
                    f"{key} is not supported: {_REFUSED[key]}. Merge the adapter into its model "
                    "instead."
                )
            if key not in _KNOWN and key not in _REFUSED and value:
                hint = did_you_mean(key, _KNOWN)
                raise BadAdapter(
                    f"{key!r:.100} of adapter_config.json is unknown{hint}; it may change the "
                    "result. Remove it if it does not."
                )
        ranks = _pattern(config, "rank_pattern")
        alphas = _pattern(config, "alpha_pattern")
        saved = config.get("modules_to_save")
        layers = config.get("layers_to_transform")
        bias = config.get("bias") or "none"
        if bias not in ("none", "all", "lora_only"):
            raise BadAdapter(f"bias: got {bias!r:.50}; expected none, all or lora_only.")
        return cls(
            rank=_rank("r", config.get("r")),
            alpha=_number("lora_alpha", config.get("lora_alpha")),
            rslora=bool(config.get("use_rslora")),
            rank_pattern={name: _rank("rank_pattern", r) for name, r in ranks.items()},
            alpha_pattern={name: _number("alpha_pattern", a) for name, a in alphas.items()},
            rank_keys=ModulePatterns("rank_pattern", ranks),
            alpha_keys=ModulePatterns("alpha_pattern", alphas),
            targets=_targets(config.get("target_modules")),
            modules_to_save=_texts("modules_to_save", saved),
            layers=None if layers is None else _layers(layers),
            bias=bias,
            base_model=str(config.get("base_model_name_or_path") or ""),
            ties_embedding=bool(config.get("ensure_weight_tying")),
        )

    @property
    def max_rank(self) -> int:
        """The largest configured rank."""
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, by its name in the adapter."""
        key = self.rank_keys.find(module)
        return self.rank if key is None else self.rank_pattern[key]

    def scale_of(self, module: str) -> float:
        """Return the scale of a module's low-rank product."""
        key = self.alpha_keys.find(module)
        alpha = self.alpha if key is None else self.alpha_pattern[key]
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def targets_module(self, module: str) -> bool:
        """Return whether the targets include a module."""
        if isinstance(self.targets, tuple):
            named = any(
                module == target or module.endswith(f".{target}") for target in self.targets
            )
        else:
            named = self.targets is None or matches(self.targets, module)
        if not named or self.layers is None:
            return named
        numbers = [int(part) for part in module.split(".") if part.isdigit()]
        return bool(numbers) and numbers[0] in self.layers


def _targets(value: Any) -> Pattern | tuple[str, ...] | None:
    if value == "all-linear":
        return None
    if isinstance(value, str):
        return expression("target_modules", value)
    return _texts("target_modules", value)


def _pattern(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise BadAdapter(f"{key}: got {found!r:.50}; expected an object.")
    return found


def _rank(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise BadAdapter(f"{key}: got {value!r:.50}; expected an integer rank of at least 1.")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MAX_SCALE:
        raise BadAdapter(f"{key}: got {value!r:.50}; expected a finite number.")
    return float(value)


def _layers(value: Any) -> tuple[int, ...]:
    listed = [value] if type(value) is int else value
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise BadAdapter(f"layers_to_transform: got {value!r:.50}; expected a list of integers.")
    return tuple(listed)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    listed: Sequence[Any] = [] if value is None else value
    if (
        isinstance(listed, str)
        or not isinstance(listed, Sequence)
        or not all(isinstance(each, str) for each in listed)
    ):
        raise BadAdapter(f"{key}: got {value!r:.50}; expected a list of names.")
    return tuple(listed)


_ROOT: Final = re.compile(r"^base_model\.model\.")
_FORMS: Final = (
    (re.compile(r"(.+)\.lora_(A|B)(?:\.default)?\.weight"), "{}"),
    (re.compile(r"(.+)\.lora_embedding_(A|B)(?:\.default)?(?:\.weight)?"), "embedding {}"),
    (re.compile(r"(.+)\.lora_(B)(?:\.default)?\.bias"), "added bias"),
    (re.compile(r"(.+?)(?:\.modules_to_save(?:\.default)?|\.base_layer)?\.(weight|bias)"), "{}"),
)


@dataclass(frozen=True, slots=True)
class TensorRole:
    """Module and role of an adapter tensor."""

    module: str
    """Name of the module in the trained model."""
    role: str
    """"A", "B", "embedding A", "embedding B", "added bias", "weight" or "bias"."""


def parse_tensor_name(name: str) -> TensorRole:
    """Return the module and role of a tensor by its name. Raises `BadAdapter`."""
    inner = _ROOT.sub("", name)
    if "lora_magnitude_vector" in inner:
        raise BadAdapter(
            f"{name!r:.200} belongs to DoRA, which is not supported. Merge the adapter into its "
            "model instead."
        )
    for form, role in _FORMS:
        found = form.fullmatch(inner)
        if found is not None:
            return TensorRole(found[1], role.format(found[2]))
    raise BadAdapter(
        f"{name!r:.200}: expected the name of a LoRA tensor. Remove the tensor, or save the "
        "adapter again."
    )
