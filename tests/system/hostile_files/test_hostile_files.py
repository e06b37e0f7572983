"""Every hostile file of the corpus is refused by name or served, within bounds.

A tenth of each kind runs in the fast suite.
"""

from __future__ import annotations

import re
import shutil
from itertools import groupby
from pathlib import Path

import pytest

from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.features.lora.adapter_writer import make_adapter
from tests.system.hostile_files import image_processors, option_files
from tests.system.hostile_files.corpus import CORPUS
from tests.system.hostile_files.hostile_file import HostileFile
from tests.system.hostile_files.sandbox import MAX_RESIDENT_BYTES, load

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "guides" / "limits.md"
MAX_MESSAGE_CHARS = 4000
EVERY = 10
"""The fast suite loads one of so many files of each kind."""
COSTLY = ("four deep", "macro of two calls", "six loops", "nested lists", "split into characters")
"""Parts of the names of files that use up a time limit; for the slow suite only."""


def in_fast_suite() -> set[str]:
    """Return the ids of a tenth of each kind."""
    chosen = set()
    for _, kind in groupby(CORPUS, key=lambda hostile: hostile.kind):
        cheap = [h.id for h in kind if not any(part in h.name for part in COSTLY)]
        chosen.update(cheap[EVERY // 2 :: EVERY])
    return chosen


FAST = in_fast_suite()


@pytest.fixture(scope="session")
def good_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small good checkpoint with a tokenizer, and an adapter in it."""
    folder = tmp_path_factory.mktemp("good") / "model"
    make_checkpoint("LlamaForCausalLM", folder, hidden_size=32, num_hidden_layers=2)
    make_adapter(folder, folder / "adapter", 4, base_model_name_or_path="good")
    option_files.write_inputs(folder)
    return folder


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(hostile, id=hostile.id, marks=() if hostile.id in FAST else pytest.mark.slow)
        for hostile in CORPUS
    ],
)
def test_hostile_file_is_refused_by_name_or_served(
    hostile: HostileFile, good_model: Path, tmp_path: Path
) -> None:
    if hostile.way == image_processors.WAY:
        pytest.importorskip("PIL", reason="Pillow is not installed")
    folder = shutil.copytree(good_model, tmp_path / "model")
    hostile.write(folder / hostile.part)
    outcome = load(hostile.way, folder, dict(hostile.options))
    assert outcome.status != "raised", outcome.message
    if hostile.refusal is None:
        assert outcome.status == "served", outcome.message
    else:
        assert outcome.status == "refused"
        assert re.search(hostile.refusal, outcome.message), outcome.message
    assert len(outcome.message) < MAX_MESSAGE_CHARS
    assert outcome.resident_bytes < MAX_RESIDENT_BYTES
    if outcome.seen_by_client:
        given = str(folder / hostile.part) if hostile.way == "adapter_by_route" else "\0"
        assert str(tmp_path) not in outcome.message.replace(given, "")


def test_page_counts_the_corpus() -> None:
    assert f"{len(CORPUS)} hostile files" in PAGE.read_text(encoding="utf-8")
