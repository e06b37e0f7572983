"""What `adapter_config.json` says, as PEFT writes it: ranks, scales, targets.

What is not served is refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from builtin_plugins.features.lora.stored import BadAdapter
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
"""Keys that are read, or bear on training alone."""
_REFUSED: Final[Mapping[str, str]] = {
    "use_dora": "DoRA rescales whole weights, which many adapters in one batch cannot share",
    "use_qalora": "QA-LoRA pools what its products read",
    "use_bdlora": "block-diagonal adapters are stored in another form",
    "layer_replication": "the adapter stands for a model with other layers",
    "alora_invocation_tokens": "an activated adapter begins in the middle of a prompt",
    "arrow_config": "Arrow mixes adapters token by token",
    "trainable_token_indices": "single rows of the embedding are replaced",
    "megatron_config": "it is split for Megatron",
    "velora_config": "it is stored in another form",
}
LARGEST: Final = 1e30
"""Of a scale: what is larger is no finite number once it is multiplied."""


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """The facts of an adapter."""

    rank: int
    alpha: float
    rslora: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: str | tuple[str, ...]
    """Ends of modules' names, or a regex for whole names; "all-linear": every linear layer but the
    head.
    """
    modules_to_save: tuple[str, ...]
    layers: tuple[int, ...] | None
    """Those that are adapted; None: all."""
    bias: str
    base_model: str
    ties: bool
    """An adapter of the embedding is one of a head that is tied to it, too."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> PeftConfig:
        """Raises `BadAdapter` naming what is not served."""
        kind = config.get("peft_type", "LORA")
        if kind != "LORA":
            raise BadAdapter(f"peft_type is {kind!r:.50}; only LORA is served.")
        for key, value in config.items():
            if key in _REFUSED and value:
                raise BadAdapter(
                    f"{key} is not served: {_REFUSED[key]}. Merge the adapter into its model "
                    "instead."
                )
            if key not in _KNOWN and key not in _REFUSED and value:
                hint = did_you_mean(key, _KNOWN)
                raise BadAdapter(
                    f"{key!r:.100} of adapter_config.json is not known{hint}; it may change what "
                    "is meant."
                )
        targets = config.get("target_modules")
        saved = config.get("modules_to_save")
        layers = config.get("layers_to_transform")
        bias = config.get("bias") or "none"
        if bias not in ("none", "all", "lora_only"):
            raise BadAdapter(f"bias is {bias!r:.50}; it must be none, all or lora_only.")
        return cls(
            rank=_rank("r", config.get("r")),
            alpha=_number("lora_alpha", config.get("lora_alpha")),
            rslora=bool(config.get("use_rslora")),
            rank_pattern={
                name: _rank("rank_pattern", r)
                for name, r in _pattern(config, "rank_pattern").items()
            },
            alpha_pattern={
                name: _number("alpha_pattern", a)
                for name, a in _pattern(config, "alpha_pattern").items()
            },
            targets=targets if isinstance(targets, str) else _texts("target_modules", targets),
            modules_to_save=_texts("modules_to_save", saved),
            layers=None if layers is None else _layers(layers),
            bias=bias,
            base_model=str(config.get("base_model_name_or_path") or ""),
            ties=bool(config.get("ensure_weight_tying")),
        )

    @property
    def most_rank(self) -> int:
        """The largest rank that is stated."""
        return max(self.rank, *self.rank_pattern.values()) if self.rank_pattern else self.rank

    def rank_of(self, module: str) -> int:
        """Return the rank of a module, by its name in the adapter."""
        key = _match(self.rank_pattern, module)
        return self.rank if key is None else self.rank_pattern[key]

    def scale_of(self, module: str) -> float:
        """Return what a module's product of low rank is multiplied by."""
        key = _match(self.alpha_pattern, module)
        alpha = self.alpha if key is None else self.alpha_pattern[key]
        rank = self.rank_of(module)
        return alpha / (math.sqrt(rank) if self.rslora else rank)

    def wants(self, module: str) -> bool:
        """Say whether the targets name a module."""
        if isinstance(self.targets, str):
            named = self.targets == "all-linear" or _full(self.targets, module)
        else:
            named = any(
                module == target or module.endswith(f".{target}") for target in self.targets
            )
        if not named or self.layers is None:
            return named
        numbers = [int(part) for part in module.split(".") if part.isdigit()]
        return bool(numbers) and numbers[0] in self.layers


def _match(patterns: Mapping[str, Any], module: str) -> str | None:
    """Return the first key that is the end of a name, or a regex for it, as PEFT looks."""
    return next((key for key in patterns if _full(rf"(.*\.)?({key})$", module)), None)


def _full(pattern: str, text: str) -> bool:
    try:
        return re.fullmatch(pattern, text) is not None
    except re.error as error:
        raise BadAdapter(
            f"{pattern!r:.100} of adapter_config.json is no regular expression ({error})."
        ) from error


def _pattern(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = config.get(key) or {}
    if not isinstance(found, dict):
        raise BadAdapter(f"{key} must be an object, not {found!r:.50}.")
    return found


def _rank(key: str, value: Any) -> int:
    if type(value) is not int or value < 1:
        raise BadAdapter(f"{key} is {value!r:.50}; a rank is a whole number from 1 on.")
    return value


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise BadAdapter(f"{key} is {value!r:.50}; it must be a number.")
    return float(value)


def _layers(value: Any) -> tuple[int, ...]:
    listed = [value] if type(value) is int else value
    if not isinstance(listed, list) or not all(type(each) is int for each in listed):
        raise BadAdapter(f"layers_to_transform must be a list of numbers, not {value!r:.50}.")
    return tuple(listed)


def _texts(key: str, value: Any) -> tuple[str, ...]:
    listed: Sequence[Any] = [] if value is None else value
    if (
        isinstance(listed, str)
        or not isinstance(listed, Sequence)
        or not all(isinstance(each, str) for each in listed)
    ):
        raise BadAdapter(f"{key} must be a list of names, not {value!r:.50}.")
    return tuple(listed)
