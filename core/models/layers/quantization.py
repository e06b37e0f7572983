"""Choice of a model's quantization method, and the base class of quantized layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from core.errors import ModelError, did_you_mean
from core.models.layers.weights import WeightMap, WeightSlot
from core.plugin.entry import construct
from core.plugin.missing import missing_entry

if TYPE_CHECKING:
    import torch

    from core.config import EngineConfig
    from core.contracts.models import BuildContext, ModelSource
    from core.contracts.registry import Registry
    from core.model_spec.names import WeightNames
    from core.model_spec.quant_method import QuantMethod
    from core.model_spec.weight_shard import WeightShard
    from core.models.layers.weights import WeightMap
    from core.plugin import Registered


KIND = "quant_methods"
PLAIN = "none"
"""Method of unquantized checkpoints."""
PLAIN_WEIGHTS = "plain weights"
"""Capability of entries that store plain weights in a device's layout."""


def quant_method(config: EngineConfig, source: ModelSource, registry: Registry) -> QuantMethod:
    """Return the quantization method of the flag or the checkpoint.

    Raises `ModelError` for a method that is not loaded or does not read the checkpoint.
    """
    stated = source.quantization
    flag = config.model.quantization
    by_name = {registered.entry.name: registered for registered in registry.entries(KIND)}
    own_method = _resolve_alias(stated, None, by_name)
    name = _resolve_alias(flag, own_method, by_name) or own_method or PLAIN
    if name not in by_name:
        origin = "--quantization" if flag else "the checkpoint"
        if missing := missing_entry(registry, KIND, name):
            raise ModelError(
                f"{origin} names the quantization method {name!r}: {missing}. "
                f"Known: {', '.join(sorted(by_name))}."
            )
        raise ModelError(
            f"{origin} names the quantization method {name!r}, which no loaded plugin has"
            f"{did_you_mean(name, by_name) or '.'} Known: {', '.join(sorted(by_name))}. Install a "
            "plugin that provides it (hook engine_quant_methods), or use an unquantized checkpoint."
        )
    chosen = by_name[name]
    made = registry.load(chosen)
    facts = getattr(source.hf_config, "quantization_config", None)
    is_another = bool(stated) and own_method != name
    contradiction = ModelError(
        f"--quantization {flag} does not read this checkpoint, which is stored as "
        f"{stated!r:.80}. Remove --quantization, or use an unquantized checkpoint."
    )
    try:
        with registry.blame(chosen):
            method: QuantMethod = construct(made, facts, config)
    except ModelError as error:  # its message about another method's config is of no use
        if is_another and stated not in getattr(made, "reads", ()):
            raise contradiction from error
        if flag and flag != name:  # an alias of the method
            raise ModelError(
                str(error).replace(f"--quantization {name} ", f"--quantization {flag} ")
            ) from error
        raise
    if is_another and stated not in getattr(method, "reads", ()):
        raise contradiction
    return method


def check_options(method: QuantMethod, config: EngineConfig, registry: Registry) -> None:
    """Raise `ModelError` for a set option of quantization methods that this one does not read."""
    read = getattr(method, "options", ())
    for _, option in registry.options():
        value = config.options.get(option.name, option.default)
        if option.read_by == KIND and value != option.default and option.name not in read:
            raise ModelError(
                f"--{option.name.replace('_', '-')}: got {value!r}; expected a quantization method "
                f"that reads it, and {method.name!r} does not. Remove it."
            )


def pass_checkpoint_dtypes(
    method: QuantMethod, names: WeightNames, tensors: Iterable[tuple[str, torch.Tensor]]
) -> None:
    """Pass the dtypes of the checkpoint's tensors to a method, by the names used in the model."""
    set_dtypes: Callable[[Mapping[str, torch.dtype]], None] | None = getattr(
        method, "set_checkpoint_dtypes", None
    )
    if set_dtypes is not None:
        renamed = WeightMap(rename=names.rename).renamed
        set_dtypes({renamed(name): tensor.dtype for name, tensor in tensors})


def _resolve_alias(
    name: str | None, stated: str | None, by_name: Mapping[str, Registered]
) -> str | None:
    """Return the entry of a method name or alias.

    Aliases are in what an entry gives; if several entries share one, the checkpoint's is used.
    """
    if name is None or name in by_name:
        return name
    others = [own for own, registered in by_name.items() if name in registered.entry.gives]
    return stated if stated in others else next(iter(sorted(others)), name)


def plain_weights(
    config: EngineConfig, registry: Registry, facts: Mapping[str, Any]
) -> QuantMethod | None:
    """Return the best "plain weights" method for `facts` (device, dtype, platform); None without
    one.
    """
    for candidate in registry.rank(KIND, facts):
        if PLAIN_WEIGHTS in candidate.registered.entry.gives and not candidate.reason:
            made = registry.load(candidate.registered)
            with registry.blame(candidate.registered):
                method: QuantMethod = construct(made, None, config)
            return method
    return None


class QuantizedLayer(nn.Module):
    """A layer with weights that a quantization method owns (`method`)."""

    method: Any
    """A `LinearMethod`, `EmbeddingMethod` or `ExpertsMethod`."""
    parts: dict[str, WeightShard]
    """This rank's weight shard of each checkpoint prefix."""
    _is_fresh = False

    def expect(self, weights: WeightMap, prefix: str, part: WeightShard) -> None:
        """Expect the tensors of one prefix that the method reads."""
        facts = self.tensor_spec(prefix)
        slots = self.slots(prefix, ".", facts.suffixes, part)
        for name, slot in slots.items():
            weights.add_slot(name, slot)
        for other, suffix in getattr(facts, "other_names", {}).items():
            name = f"{prefix}.{suffix}"
            weights.add_alternatives({f"{prefix}.{other}": slots[name]}, (name,))
        optional = self.slots(prefix, ".", getattr(facts, "optional_suffixes", ()), part)
        for name, slot in optional.items():
            weights.add_alternatives({name: slot}, ())

    def tensor_spec(self, prefix: str) -> Any:
        """Return the object that describes the tensors of a prefix; by default the method
        itself.
        """
        facts: Callable[[str], Any] | None = getattr(self.method, "tensor_spec", None)
        return self.method if facts is None else facts(prefix)

    def slots(
        self, prefix: str, separator: str, suffixes: tuple[str, ...], part: WeightShard
    ) -> dict[str, WeightSlot]:
        """Return the weight slots of tensors with these suffixes, by checkpoint name."""
        facts = self.method if part.num_experts else self.tensor_spec(prefix)
        return {
            f"{prefix}{separator}{suffix}": WeightSlot(
                _shape(facts, suffix, part), partial(self._take, suffix, part), self.finish
            )
            for suffix in suffixes
        }

    def finish(self) -> None:
        """Let the method repack after new tensors; a `WeightMap` calls it after each load."""
        if self._is_fresh:
            self._is_fresh = False
            self.method.finish(self)

    def _take(self, suffix: str, part: WeightShard, tensor: torch.Tensor) -> None:
        self._is_fresh = True
        self.method.load(self, suffix, tensor, part)


def layer_method(quant: QuantMethod, kind: str, prefix: str) -> Any:
    """Return the method for a layer of `kind` (head, embedding, experts); None: the plain one."""
    choose: Callable[[str], Any] | None = getattr(quant, kind, None)
    return None if choose is None else choose(prefix)


def with_plain_method(method: Any, plain: Callable[[], Any]) -> Any:
    """Return `method`; if it can dequantize, it gets the device's method for plain weights."""
    use_plain: Callable[[Callable[[], Any]], None] | None = getattr(
        method, "use_plain_method", None
    )
    if use_plain is not None:
        use_plain(plain)
    return method


def plain_method(context: BuildContext, kind: str, prefix: str) -> Any:
    """Return the device's method for a plain weight of `kind`; None: it has none."""
    return None if context.plain is None else layer_method(context.plain, kind, prefix)


def _shape(method: Any, suffix: str, part: WeightShard) -> tuple[int, ...] | None:
    """Return the method's shape of a tensor; without one, that of a plain weight."""
    shape: Callable[[str, WeightShard], tuple[int, ...] | None] | None = getattr(
        method, "shape", None
    )
    if shape is not None:
        return shape(suffix, part)
    return part.shape if suffix == "weight" else None
