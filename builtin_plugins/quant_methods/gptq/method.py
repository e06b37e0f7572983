"""GPTQ checkpoints: integers packed along the inputs (first axis), zero points along the outputs.

Rules by name change the settings of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch

from builtin_plugins.model_sources.api import Pattern
from builtin_plugins.quant_methods.common.module_names import Matcher, NameList
from builtin_plugins.quant_methods.stored.config_fields import read_names, read_objects
from builtin_plugins.quant_methods.stored.formats import (
    StoredFormat,
    column_groups,
    num_groups,
    shard_groups,
    unpack_outputs,
)
from builtin_plugins.quant_methods.stored.layouts import GroupedInts, LayoutSpec
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.stored.packing import WORD, to_signed, unpack_words
from core.api import ModelError
from core.model_spec.weight_shard import WeightShard

ZERO_POINT_OFFSET: Final = {"gptq": 1, "gptq_v2": 0}
"""By `checkpoint_format`: the offset subtracted from zero points."""
KERNEL_SPECIFIC_LAYOUTS: Final = {
    "marlin": "weights are in the order of one GPU kernel",
    "marlin_24": "weights are 2:4 sparse and in the order of one GPU kernel",
    "bitblas": "weights are in an order tuned for each GPU, which the checkpoint does not state",
}
"""Unsupported layouts, with the reason."""
LAYOUT_OF_METHOD: Final = {"marlin": "marlin", "gptq_marlin_24": "marlin_24", "bitblas": "bitblas"}
"""Layouts implied by `quant_method`; other names are kernels for GPTQ's own layout."""


SKIP_PREFIX: Final = "-:"
OVERRIDE_PREFIX: Final = "+:"
"""Prefixes of rule patterns."""
MODULES_FIELD: Final = "modules_in_block_to_quantize"


class Gptq(StoredMethod):
    """Checkpoints of AutoGPTQ and GPTQModel."""

    name = "gptq"
    example_config: Final = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 128,
        "desc_act": False,
        "sym": True,
    }

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._config: Mapping[str, Any] = config
        self._overrides = read_objects(config, "dynamic")
        self._rules = NameList(self._overrides, _rule)
        layout = _layout(config)
        if layout in KERNEL_SPECIFIC_LAYOUTS:
            raise ModelError(
                f"quantization_config: checkpoint_format: got {layout!r:.80}; "
                f"{KERNEL_SPECIFIC_LAYOUTS[layout]}, which is not supported. Use the GPTQ "
                "checkpoint that it was made from."
            )
        if layout not in ZERO_POINT_OFFSET or config.get("pack_dtype", "int32") != "int32":
            raise ModelError(
                f"quantization_config: checkpoint_format: got {layout!r:.80} packed into "
                f"{config.get('pack_dtype', 'int32')}; expected one of "
                f"{', '.join(ZERO_POINT_OFFSET)} packed into int32. Convert the checkpoint with "
                "the tool that wrote it."
            )
        self._zero_point_offset = ZERO_POINT_OFFSET[layout]
        only = _only(config.get(MODULES_FIELD) or ())
        self._only = NameList(only, anywhere=True) if only else None
        self._format(config)

    def choose_format(self, prefix: str) -> StoredFormat | None:
        """Return the format by the first matching rule; a rule may leave the layer plain."""
        if self._only is not None and self._only.find(prefix) is None:
            return None
        return self._by_rules(prefix)

    def _by_rules(self, prefix: str) -> StoredFormat | None:
        rule = self._rules.find_pattern(prefix)
        if rule is None:
            return self._format(self._config)
        if rule.startswith(SKIP_PREFIX):
            return None
        return self._format({**self._config, **self._overrides[rule]})

    def choose_head_format(self, prefix: str) -> StoredFormat | None:
        """Return the head's format if the config sets `lm_head`; the head is in no block."""
        if self._config.get("lm_head") and prefix.endswith("lm_head"):
            return self._by_rules(prefix)
        return None

    def _format(self, facts: Mapping[str, Any]) -> GptqFormat:
        bits = facts.get("bits")
        group = facts.get("group_size", 128)
        if bits not in BITS or not isinstance(group, int) or not (group == -1 or group > 0):
            raise ModelError(
                f"quantization_config: got {bits!r:.80} bits with group_size {group!r:.80}; gptq "
                f"expects {', '.join(map(str, BITS))} bits and group_size -1 (a row) or more."
            )
        has_g_idx = bool(facts.get("desc_act"))
        return GptqFormat(
            bits,
            group,
            is_symmetric=facts.get("sym") is True,
            has_g_idx=has_g_idx,
            zero_point_offset=self._zero_point_offset,
        )


def _rule(text: str) -> Matcher:
    """Return the matcher of a rule: names that start with its pattern."""
    return Pattern(
        text.removeprefix(SKIP_PREFIX if text.startswith(SKIP_PREFIX) else OVERRIDE_PREFIX)
    ).match


def _only(listed: Any) -> list[str]:
    """Return the names of a list, or of a list of lists."""
    kinds = listed if isinstance(listed, (list, tuple)) else [[listed]]
    flat = [name for own in kinds for name in (own if isinstance(own, (list, tuple)) else [own])]
    return list(read_names({MODULES_FIELD: flat}, MODULES_FIELD))


def _layout(config: Mapping[str, Any]) -> str:
    """Return the `checkpoint_format`, which some tools state by a flag or by the method name."""
    flagged = next(
        (name for name in KERNEL_SPECIFIC_LAYOUTS if config.get(f"is_{name}_format")), None
    )
    return flagged or str(
        config.get("checkpoint_format")
        or LAYOUT_OF_METHOD.get(str(config.get("quant_method")), "gptq")
    )


BITS = (2, 3, 4, 8)


class GptqFormat(StoredFormat):
    """`group`: -1 is the whole row.

    `has_g_idx`: columns name their groups. `zero_point_offset`: offset of stored zero points.
    """

    layout_spec: LayoutSpec

    def __init__(
        self, bits: int, group: int, *, is_symmetric: bool, has_g_idx: bool, zero_point_offset: int
    ) -> None:
        self._bits = bits
        self._group = group
        self._stored_zero_point_offset = zero_point_offset
        self.suffixes = ("qweight", "qzeros", "scales", *(["g_idx"] if has_g_idx else []))
        self.optional_suffixes = () if has_g_idx else ("g_idx",)
        self.layout_spec = LayoutSpec(bits, group, has_zeros=not is_symmetric, has_g_idx=has_g_idx)
        self.bits_per_weight = bits + (16 + bits) / max(group, 32)

    def check(self, shard: WeightShard) -> None:
        """Reject group sizes that do not divide the inputs, and shards that cut a group."""
        if num_groups(shard, self._group) > 1 and not self.layout_spec.has_g_idx:
            shard.columns(
                torch.empty(1, num_groups(shard, self._group), device="meta"), per=self._group
            )

    def shape(self, suffix: str, shard: WeightShard) -> tuple[int, ...] | None:
        """Return the shape of one of the tensors."""
        groups = num_groups(shard, self._group)
        out = shard.out_features
        words_in, words_out = (-(-size * self._bits // WORD) for size in (shard.in_features, out))
        return {
            "qweight": (words_in, out),
            "qzeros": (groups, words_out),
            "scales": (groups, out),
            "g_idx": (shard.in_features,),
        }[suffix]

    def check_optional(self, suffix: str, tensor: torch.Tensor, shard: WeightShard) -> None:
        """Reject a g_idx if the config disables it."""
        size = shard.in_features if self._group <= 0 else self._group
        if not torch.equal(tensor.long(), torch.arange(shard.in_features) // size):
            raise ModelError(
                "has an activation order, but the quantization config has desc_act=false. Set it "
                "to true with --hf-overrides or in config.json."
            )

    def unpack(self, tensors: Mapping[str, torch.Tensor], shard: WeightShard) -> GroupedInts:
        """Return this rank's shard."""
        codes = unpack_words(
            shard.rows(tensors["qweight"], 1).T.contiguous(), self._bits, shard.in_features
        )
        codes = to_signed(shard.columns(codes), self._bits)
        zeros = unpack_outputs(tensors["qzeros"], self._bits, shard).short().T + (
            self._stored_zero_point_offset - (1 << (self._bits - 1))
        )
        scales = shard.rows(tensors["scales"], 1).T
        if not self.layout_spec.has_zeros and bool(zeros.any()):
            raise ModelError(
                "has asymmetric zero points, but the quantization config has sym=true. Set it to "
                "false with --hf-overrides or in config.json."
            )
        if not self.layout_spec.has_g_idx:
            scales, zeros = (shard_groups(tensor, shard, self._group) for tensor in (scales, zeros))
            return GroupedInts(codes, scales, zeros if self.layout_spec.has_zeros else None)
        order = column_groups(tensors["g_idx"], shard, scales.shape[1])
        return GroupedInts(codes, scales, zeros if self.layout_spec.has_zeros else None, order)
