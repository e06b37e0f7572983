"""Which layers of a GPTQ checkpoint are packed, and how: one setting for all, and rules by name
that change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from builtin_plugins.quant_methods.common.names import Fits, Listed
from builtin_plugins.quant_methods.gptq.format import BITS, GptqFormat
from builtin_plugins.quant_methods.stored.formats import StoredFormat
from builtin_plugins.quant_methods.stored.method import StoredMethod
from builtin_plugins.quant_methods.stored.patterns import Pattern
from builtin_plugins.quant_methods.stored.stated import names, sections
from core.api import ModelError

LESS: Final = {"gptq": 1, "gptq_v2": 0}
"""By `checkpoint_format`: zero points of the first are stored less one."""
OF_ONE_KERNEL: Final = {
    "marlin": "weights lie in the order of one GPU's kernel",
    "marlin_24": "two of four numbers are left out, and the others lie in the order of one GPU's "
    "kernel",
    "bitblas": "weights lie in an order that is tuned for each GPU, which the checkpoint does not "
    "state",
}
"""Formats that are not read, and why."""
OF_METHODS: Final = {"marlin": "marlin", "gptq_marlin_24": "marlin_24", "bitblas": "bitblas"}
"""Formats by `quant_method`, where that says it; other names are of kernels for GPTQ's own."""


LEAVES: Final = "-:"
CHANGES: Final = "+:"
"""What the patterns of rules begin with."""
ONLY: Final = "modules_in_block_to_quantize"


class Gptq(StoredMethod):
    """GPTQ, as AutoGPTQ and GPTQModel write it."""

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
        self._changes = sections(config, "dynamic")
        self._rules = Listed(self._changes, _rule)
        layout = _layout(config)
        if layout in OF_ONE_KERNEL:
            raise ModelError(
                f"quantization_config: checkpoint_format is {layout!r:.80}: "
                f"{OF_ONE_KERNEL[layout]}. That is not read; take the "
                "GPTQ checkpoint that this one was made from."
            )
        if layout not in LESS or config.get("pack_dtype", "int32") != "int32":
            raise ModelError(
                f"quantization_config: checkpoint_format is {layout!r:.80}, packed into "
                f"{config.get('pack_dtype', 'int32')}; "
                f"read are {', '.join(LESS)} in int32. Convert the checkpoint with the tool that "
                "wrote it."
            )
        self._less = LESS[layout]
        only = _only(config.get(ONLY) or ())
        self._only = Listed(only, anywhere=True) if only else None
        self._format(config)

    def decide(self, prefix: str) -> StoredFormat | None:
        """Return the layer's format after the first rule that matches its name; a rule may leave it
        plain.
        """
        if self._only is not None and self._only.find(prefix) is None:
            return None
        return self._by_rules(prefix)

    def _by_rules(self, prefix: str) -> StoredFormat | None:
        rule = self._rules.pattern(prefix)
        if rule is None:
            return self._format(self._config)
        return (
            None
            if rule.startswith(LEAVES)
            else self._format({**self._config, **self._changes[rule]})
        )

    def decide_head(self, prefix: str) -> StoredFormat | None:
        """Return the head's format where the config says that it has one; it is in no block."""
        return (
            self._by_rules(prefix)
            if self._config.get("lm_head") and prefix.endswith("lm_head")
            else None
        )

    def _format(self, facts: Mapping[str, Any]) -> GptqFormat:
        bits = facts.get("bits")
        group = facts.get("group_size", 128)
        if bits not in BITS or not isinstance(group, int) or not (group == -1 or group > 0):
            raise ModelError(
                f"quantization_config: {bits!r:.80} bits in groups of {group!r:.80}; gptq has "
                f"{', '.join(map(str, BITS))} bits "
                "and groups of -1 (a row) or more inputs."
            )
        is_ordered = bool(facts.get("desc_act"))
        return GptqFormat(
            bits,
            group,
            is_symmetric=facts.get("sym") is True,
            is_ordered=is_ordered,
            stored_less=self._less,
        )


def _rule(text: str) -> Fits:
    """Return which layers a rule is about: those whose names begin as its pattern says."""
    return Pattern(text.removeprefix(LEAVES if text.startswith(LEAVES) else CHANGES)).begins


def _only(listed: Any) -> list[str]:
    """Return the names of a list, or of a list of lists."""
    kinds = listed if isinstance(listed, (list, tuple)) else [[listed]]
    flat = [name for own in kinds for name in (own if isinstance(own, (list, tuple)) else [own])]
    return list(names({ONLY: flat}, ONLY))


def _layout(config: Mapping[str, Any]) -> str:
    """Return the `checkpoint_format`, which some tools state by a flag, or by the name of the
    method.
    """
    flagged = next((name for name in OF_ONE_KERNEL if config.get(f"is_{name}_format")), None)
    return flagged or str(
        config.get("checkpoint_format") or OF_METHODS.get(str(config.get("quant_method")), "gptq")
    )
