"""Layers that a checkpoint's config names: as its tensors are, as a model in transformers' memory
has them, or by patterns.

Tools read names off a model that is loaded, and write what they find there. Knows names, and no
format.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from fnmatch import translate
from typing import Final

from builtin_plugins.quant_methods.stored.patterns import Pattern

EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)")
MATRICES: Final = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
MIXTURE: Final = ".block_sparse_moe."
HEADS: Final = ("embed_out", "output_projection", "proj_out")
"""Heads in checkpoints that transformers 5 calls `HEAD` once they are loaded."""
HEAD: Final = "lm_head"
TOGETHER: Final = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj"),
}
"""Layers that are one in other engines, and all experts' matrices that are one in memory."""
ROOT: Final = re.compile(r"(?:(?:model|language_model|text_model|backbone|transformer)\.)+")
"""What is before a decoder's layers. The towers beside a decoder have names of their own behind it.
"""
ROOTS: Final = {
    "model.language_model.": "language_model",
    "language_model.model.": "language_model",
    "backbone.": "backbone",
}
"""Of the same layers, in checkpoints with towers and in those that this engine renames; and what
patterns have that mean them.
"""
MARK: Final = "re:"
WILD: Final = "*?["
SIGNS: Final = "*+?[(|\\^$"
"""A name that has one of them is a pattern, to tools that take all names for patterns."""
UNLESS: Final = ("(?!", "(?<!")
AT_A_DOT: Final = r"(?:(?<=\.)|(?=\.|$))"

Fits = Callable[[str], bool]
Reading = Callable[[str], Fits | None]
"""Returns what says whether a pattern fits a name; None: the text is no pattern but a name."""


def spellings(prefix: str) -> tuple[str, ...]:
    """Return a layer's name here, and those that transformers 5 has for it where that calls it
    otherwise.

    Some tools (llm-compressor) turn back the name of the mixture, not those of an expert's
    matrices.
    """
    if prefix in HEADS:
        return prefix, HEAD
    found = EXPERT.fullmatch(prefix)
    loaded = (
        f"{found[1]}.{found[2]}.{MATRICES[found[3]]}" if found and found[3] in MATRICES else prefix
    )
    return tuple(dict.fromkeys((prefix, loaded, loaded.replace(MIXTURE, ".mlp."))))


def marked(text: str) -> Fits | None:
    """Read a regular expression behind its mark, as compressed-tensors has it: it fits the
    beginning of a name.
    """
    return Pattern(text.removeprefix(MARK)).begins if text.startswith(MARK) else None


def wildcards(text: str) -> Fits | None:
    """Read wildcards, as NVIDIA's and AMD's tools have them: they fit a whole name."""
    if text.startswith(MARK) or not any(sign in text for sign in WILD):
        return marked(text)
    begin = text.removesuffix("*")
    if not any(sign in begin for sign in WILD):
        return lambda name: name.startswith(begin)
    whole = re.compile(translate(text))
    return lambda name: whole.match(name) is not None


def expressions(text: str) -> Fits | None:
    """Read a name as transformers does: as a regular expression that fits a name from its beginning
    to a dot or the end.
    """
    if text.startswith((MARK, "*")) or not any(sign in text for sign in SIGNS):
        return wildcards(text)
    return Pattern(f"(?:{text}){AT_A_DOT}").begins


class Listed:
    """Texts of a config, each of which names a layer or several.

    `reading`: which of them are patterns. `anywhere`: a name may be any part of a layer's, as `mlp`
    or `q_proj`; else it is the layer's own, or that of a module that holds it.
    """

    def __init__(
        self, texts: Collection[str], reading: Reading = marked, *, anywhere: bool = False
    ) -> None:
        self._anywhere = anywhere
        self._names: dict[str, str] = {}
        self._patterns: list[tuple[str, Fits, bool]] = []
        for text in texts:
            fits = reading(text)
            if fits is None:
                self._names.setdefault(_below_root(text.removesuffix(".weight")), text)
            else:
                self._patterns.append((text, fits, any(sign in text for sign in UNLESS)))
        self._lengths = sorted({name.count(".") + 1 for name in self._names}, reverse=True)
        self._roots = [
            root for root, mark in ROOTS.items() if any(mark in text for text, *_ in self._patterns)
        ]
        self._places = {text: place for place, text in enumerate(texts)}

    def find(self, prefix: str) -> str | None:
        """Return the text that names a layer: the longest name, or the first pattern; None: there
        is none.
        """
        named = self.name(prefix)
        return self.pattern(prefix) if named is None else named

    def first(self, prefix: str) -> str | None:
        """Return whichever of both comes first."""
        found = [text for text in (self.name(prefix), self.pattern(prefix)) if text is not None]
        return min(found, key=self._places.__getitem__, default=None)

    def name(self, prefix: str) -> str | None:
        """Return the longest name of a layer, or of what holds it."""
        if not self._names:
            return None
        spelled = [_below_root(own).split(".") for own in _names_of(prefix)]
        for length in self._lengths:
            for parts in spelled:
                for start in range(len(parts) - length + 1 if self._anywhere else 1):
                    text = self._names.get(".".join(parts[start : start + length]))
                    if text is not None:
                        return text
        return None

    def pattern(self, prefix: str) -> str | None:
        """Return the first pattern that fits a layer's name; one that says what a name has not must
        fit all its spellings.
        """
        if not self._patterns:
            return None
        spelled = spellings(prefix)
        others = [
            f"{root}{_below_root(own)}"
            for root in self._roots
            for own in spelled
            if ROOT.match(own)
        ]
        tried = (*spelled, *others)
        for text, fits, is_negative in self._patterns:
            if is_negative:
                if all(map(fits, spelled)):
                    return text
                continue
            for own in tried:
                if fits(own):
                    return text
        return None


def _names_of(prefix: str) -> tuple[str, ...]:
    """Return a layer's spellings, and the names of what it is a part of that is no module here."""
    spelled = spellings(prefix)
    parted = [own.rpartition(".") for own in spelled]
    fused = [f"{holder}.{TOGETHER[last]}" for holder, _, last in parted if last in TOGETHER]
    experts = [EXPERT.fullmatch(own) for own in (*spelled, *fused)]
    return tuple(
        dict.fromkeys((*spelled, *fused, *(f"{found[1]}.{found[3]}" for found in experts if found)))
    )


def _below_root(name: str) -> str:
    root = ROOT.match(name)
    return name if root is None else name[root.end() :]
