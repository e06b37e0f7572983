"""Every hostile file of the corpus is refused by name or served, within bounds."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from core.testing.checkpoints import make_checkpoint
from tests.system.hostile_files import checkpoint_configs, tokenizers, weights
from tests.system.hostile_files.hostile_file import HostileFile
from tests.system.hostile_files.sandbox import MAX_RESIDENT_BYTES, load

CORPUS: list[HostileFile] = [
    *checkpoint_configs.CORPUS,
    *weights.CORPUS,
    *tokenizers.CORPUS,
]
MAX_MESSAGE_CHARS = 4000
TENTH = 10


@pytest.fixture(scope="session")
def good_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small good checkpoint with a tokenizer."""
    folder = tmp_path_factory.mktemp("good") / "model"
    return make_checkpoint("LlamaForCausalLM", folder, hidden_size=32, num_hidden_layers=2)


@pytest.mark.parametrize("hostile", CORPUS, ids=lambda hostile: hostile.id)
def test_hostile_file_is_refused_by_name_or_served(
    hostile: HostileFile, good_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(good_checkpoint, tmp_path / "model")
    hostile.write(folder)
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
        assert str(tmp_path) not in outcome.message
