"""Quantized checkpoints, adapters and the draft model's acceptance."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

from examples.demo_model.adapters import VOICES, merge_adapter, pirate, train_adapter, voiced_items
from examples.demo_model.draft import acceptance, walk
from examples.demo_model.layout import make_layout, plain_row
from examples.demo_model.mix import evaluation_items
from examples.demo_model.model import DemoModel, Shape, load_model, save_model
from examples.demo_model.quantize import (
    LAYOUTS,
    dequantized,
    is_quantized,
    plain_checkpoint,
    quantize,
    rounded,
)
from examples.demo_model.tokenizer import save_tokenizer, special_ids

SMALL = Shape(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, small_tokenizer):
    path = tmp_path_factory.mktemp("model")
    model = DemoModel(SMALL)
    model.initialise(0)
    save_model(model, path, special_ids(small_tokenizer))
    save_tokenizer(small_tokenizer, path, 2048)
    return path


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_checkpoint_dequantizes_to_rounded_weights(folder, tmp_path, layout, bits):
    quantize(folder, tmp_path, layout, bits)
    plain = load_file(folder / "model.safetensors")
    back = dequantized(tmp_path)
    assert back.keys() == plain.keys()
    for name, weight in plain.items():
        if is_quantized(name):
            _, scales = rounded(weight.float(), bits)
            error = (back[name].float() - weight.float()).view(*scales.shape, -1).abs().amax(-1)
            assert torch.all(error <= 0.51 * scales.float() + 0.01 * weight.abs().max().float())
        else:
            assert torch.equal(back[name], weight)


def test_both_layouts_hold_the_same_weights(folder, tmp_path):
    for layout in LAYOUTS:
        quantize(folder, tmp_path / layout, layout, 4)
    first, second = (dequantized(tmp_path / layout) for layout in LAYOUTS)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_weights_are_packed_in_layout_order(folder, tmp_path):
    for layout in LAYOUTS:
        quantize(folder, tmp_path / layout, layout, 4)
    name = "model.layers.0.mlp.up_proj"
    levels, _ = rounded(load_file(folder / "model.safetensors")[f"{name}.weight"].float(), 4)
    rows, columns = levels.shape
    packed = load_file(tmp_path / "compressed-tensors" / "model.safetensors")
    assert packed[f"{name}.weight_packed"].shape == (rows, columns // 8)
    assert packed[f"{name}.weight_packed"][3, 2].item() >> 4 & 15 == levels[3, 17] + 8
    assert packed[f"{name}.weight_shape"].tolist() == [rows, columns]
    gptq = load_file(tmp_path / "gptq" / "model.safetensors")
    assert gptq[f"{name}.qweight"].shape == (columns // 8, rows)
    assert gptq[f"{name}.qweight"][2, 3].item() >> 4 & 15 == levels[3, 17] + 8
    assert set(gptq[f"{name}.qzeros"].flatten().tolist()) == {0x77777777}
    assert gptq[f"{name}.g_idx"].tolist() == [i // 32 for i in range(columns)]


def test_dequantized_checkpoint_has_no_quantization_config(folder, tmp_path):
    quantize(folder, tmp_path / "int8", "gptq", 8)
    assert "quantization_config" in json.loads((tmp_path / "int8" / "config.json").read_text())
    plain_checkpoint(tmp_path / "int8", tmp_path / "plain")
    assert (tmp_path / "plain" / "config.json").read_text() == (folder / "config.json").read_text()
    load_model(tmp_path / "plain")


def test_trained_adapter_has_peft_format_and_changes_the_model(folder, tmp_path):
    train_adapter(folder, tmp_path, "capitals", steps=3, step_items=4)
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    a = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"]
    b = tensors["base_model.model.model.layers.1.self_attn.q_proj.lora_B.weight"]
    assert (config["peft_type"], config["r"]) == ("LORA", a.shape[0])
    assert (a.shape[1], b.shape) == (64, (64, config["r"]))
    plain = load_file(folder / "model.safetensors")
    merged = merge_adapter(folder, tmp_path)
    changed = {name for name in plain if not torch.equal(plain[name], merged[name])}
    assert changed
    assert all(is_quantized(name) for name in changed)


def test_voices_change_the_answer():
    assert pirate("You are welcome!") == "Arr! Ye be welcome!"
    assert VOICES["capitals"]("Hi 12") == "HI 12"
    for voice, speak in VOICES.items():
        trained, held = (voiced_items(voice, "x", 20, evaluation) for evaluation in (False, True))
        assert trained != held
        assert all(item.answer == speak(item.answer) for item in held if voice == "capitals")


def test_acceptance_of_own_tokens_and_after_a_wrong_draft_token(folder):
    model = load_model(folder)
    ids = [5, 6, 7]
    for _ in range(11):
        ids.append(
            int(model.logits(model(torch.tensor(ids), make_layout([plain_row(ids)]))[-1]).argmax())
        )
    prompt = ids[:3]
    answer_ids = ids[3:]
    assert walk(model, prompt, answer_ids) == (
        9,
        9,
    )  # 4, one of the target's own, 4, one more, and the last
    wrong = [(token + 1) % 512 for token in answer_ids]
    accepted, drafted = walk(model, prompt, wrong)
    assert accepted < drafted


def test_acceptance_is_counted_by_skill(folder):
    items = [
        item for skill in ("lists", "json") for item in evaluation_items(skill, seed=0, count=2)
    ]
    counts = acceptance(folder, folder, items, [item.answer for item in items])
    assert set(counts) == {"lists", "json"}
    assert all(0 <= accepted <= drafted for accepted, drafted in counts.values())
