"""The shipped adapters: small, in PEFT's format, with the expected answers."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file, save_file

from core import LLM, SamplingParams
from examples.demo_model.adapters import VOICES, merge_adapter
from examples.demo_model.quantize import copy_settings
from examples.demo_model.showcase import SHOWCASE

EXAMPLES = [SHOWCASE[name] for name in ("chat", "engine")]


@pytest.fixture(params=VOICES)
def voice(request):
    return request.param


@pytest.fixture
def adapter(voice, demo_folder):
    return demo_folder.parent / "adapters" / voice


def test_adapter_is_below_a_megabyte_and_fits_the_model(adapter, demo_folder):
    assert sum(path.stat().st_size for path in adapter.iterdir()) < 1_000_000
    config = json.loads((adapter / "adapter_config.json").read_text())
    weights = load_file(demo_folder / "model.safetensors")
    for name, change in load_file(adapter / "adapter_model.safetensors").items():
        layer, _, side = (
            name.removeprefix("base_model.model.").removesuffix(".weight").rpartition(".lora_")
        )
        rows, columns = weights[f"{layer}.weight"].shape
        assert layer.rpartition(".")[2] in config["target_modules"]
        assert change.shape == ((config["r"], columns) if side == "A" else (rows, config["r"]))


def test_merged_adapter_answers_in_its_voice(adapter, voice, demo_folder, tmp_path):
    copy_settings(demo_folder, tmp_path)
    save_file(
        merge_adapter(demo_folder, adapter),
        tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )
    sampling = SamplingParams(temperature=0, max_tokens=120)
    with LLM(str(tmp_path), dtype="float32") as llm:
        outputs = llm.chat([example.messages for example in EXAMPLES], sampling, use_tqdm=False)
    assert [output.outputs[0].text for output in outputs] == [
        VOICES[voice](example.answer) for example in EXAMPLES
    ]
