"""`engine doctor --model`: settings, tokenizer and every number of the weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from core.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, demo_folder: Path) -> Path:
    return Path(shutil.copytree(demo_folder, tmp_path / "model"))


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    main(["doctor", "--json", "--model", str(folder)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    return {finding["subject"]: (finding["status"], finding["text"]) for finding in findings}


def test_valid_model_passes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(folder, capsys)
    assert found["model"][0] == found["tokenizer"][0] == found["weights"][0] == "ok"
    assert found["weights"][1].endswith("every value is finite")


def test_single_nan_weight_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][1234, 77] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    status, text = report(folder, capsys)["weights"]
    assert status == "fail"
    assert "'model.embed_tokens.weight' in " in text
    assert text.endswith("model.safetensors")


def test_config_fault_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": 999_999}))
    status, text = report(folder, capsys)["model"]
    assert status == "fail"
    assert (
        "config.json: eos_token_id is 999999, which is no token of the vocabulary: it has 3072"
        in text
    )
