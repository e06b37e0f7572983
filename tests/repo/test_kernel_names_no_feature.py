"""The kernel names no feature: not in its code, not in its texts, not in its comments.

What a feature needs is a method on an object that a plugin supplies. The exceptions below are what
is still to go, or a word that means something else there; the list only ever gets shorter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CORE: Final = Path(__file__).parents[2] / "core"
FILES: Final = [CORE / "step.py"] + [
    file
    for part in ("engine", "scheduler", "kv", "worker", "plugin")
    for file in sorted((CORE / part).rglob("*.py"))
]
FEATURES: Final = (
    "adapter.slot",
    "audio",
    "connector",
    "disagg",
    "draft",
    "eagle",
    "encoder",
    "grammar",
    "guided",
    "image",
    "lora",
    "medusa",
    "multi.?modal",
    "ngram",
    "offload",
    "prometheus",
    "reasoning",
    "specul",
    "tool.call",
    "video",
    "xgrammar",
)
WORD: Final = re.compile("|".join(rf"(?<![a-z]){feature}" for feature in FEATURES), re.IGNORECASE)
"""At the beginning of a word, so that `explore` and `decoder` are none."""

STILL_THERE: Final[Mapping[str, set[str]]] = {
    "contracts/pooling_calls.py": {"encoder"},
    "kv/manager.py": {"encoder"},
}
OTHER_MEANINGS: Final[Mapping[str, set[str]]] = {
    # A plan, or a request, that is being made.
    "engine/admission.py": {"draft"},
    "engine/async_llm.py": {"draft"},
    "engine/completion.py": {"draft"},
    "engine/llm.py": {"draft"},
    "engine/output.py": {"draft"},
    "scheduler/planning.py": {"draft"},
    # The names of kinds are in the list of kinds.
    "plugin/kinds.py": {"connector", "grammar", "reasoning", "specul", "tool call"},
}


def named(file: Path) -> set[str]:
    """Return the features that a file names, as they are written there."""
    text = file.read_text(encoding="utf-8").replace(
        "msgpack.Encoder", ""
    )  # which turns structs into bytes
    return {match[0].lower() for match in WORD.finditer(text)}


def test_the_kernel_names_no_feature() -> None:
    allowed = {**STILL_THERE, **OTHER_MEANINGS}
    found = {str(file.relative_to(CORE)): named(file) for file in FILES}
    extra = {name: words - allowed.get(name, set()) for name, words in found.items()}
    assert {name: words for name, words in extra.items() if words} == {}, (
        "a feature needs a method on an object that its plugin supplies"
    )


def test_what_has_gone_is_off_the_list() -> None:
    gone = {
        name: words - named(CORE / name) if (CORE / name).is_file() else words
        for name, words in STILL_THERE.items()
    }
    assert {name: words for name, words in gone.items() if words} == {}, (
        "take these off STILL_THERE"
    )


def test_words_are_told_from_others() -> None:
    assert [
        match[0]
        for match in WORD.finditer("self.encoder LoRA multi_modal multimodal _draft tool-call")
    ] == [
        "encoder",
        "LoRA",
        "multi_modal",
        "multimodal",
        "draft",
        "tool-call",
    ]
    assert WORD.search("decoder explore reimagine floral") is None
