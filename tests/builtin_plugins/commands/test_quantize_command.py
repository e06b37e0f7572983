"""`engine quantize`: what it writes is what the compressed-tensors library and transformers read,
and what this engine serves.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builtin_plugins.commands.quantize.schemes import SCHEMES, group_for
from builtin_plugins.commands.quantize.writing import Piece, split_into_files, write
from builtin_plugins.quant_methods.compressed_tensors.method import CompressedTensors
from core.cli.main import main
from core.errors import ConfigError
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.quant_methods.writers.model import assert_close, is_linear, logprobs

LLAMA = "LlamaForCausalLM"
EXPERTS = "Qwen3MoeForCausalLM"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(
        LLAMA, tmp_path_factory.mktemp("plain") / "model", torch_dtype="bfloat16"
    )


def quantized(folder: Path, out: Path, *flags: str) -> dict[str, Any]:
    assert main(["quantize", str(folder), str(out), *flags]) == 0
    settings: dict[str, Any] = json.loads((out / "config.json").read_text())
    return settings["quantization_config"]  # type: ignore[no-any-return]


def dequantized_weights(out: Path, facts: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the plain weights that the library makes of a checkpoint."""
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.base import (
        BaseCompressor,
    )
    from compressed_tensors.quantization import (
        QuantizationScheme,
    )

    group = facts["config_groups"]["group_0"]
    scheme = QuantizationScheme(**group)
    layout = facts["format"]
    compressor = BaseCompressor.get_value_from_registry(layout)
    tensors = load_file(out / "model.safetensors")
    found = {}
    stems = {name.rpartition(".")[0] for name in tensors if name.endswith(".weight_scale")}
    for name, tensor in tensors.items():
        if name.rpartition(".")[0] not in stems or name.endswith(".bias"):
            found[name] = tensor.float()
    for stem in stems:
        own = {
            name.removeprefix(f"{stem}."): tensor
            for name, tensor in tensors.items()
            if name.startswith(f"{stem}.")
        }
        own.pop("bias", None)
        found[f"{stem}.weight"] = compressor.decompress(own, scheme)["weight"].float()
    return found


OFF = {
    "int8": 0.01,
    "w8a8": 0.01,
    "fp8": 0.04,
    "fp8-block": 0.04,
    "int4": 0.1,
    "int4-asym": 0.1,
    "int3": 0.25,
}
"""Of a weight's length: how far what is written may be from it."""


@pytest.mark.parametrize("scheme", SCHEMES)
def test_quantized_checkpoint_loads_in_compressed_tensors_and_engine(
    scheme: str, plain: Path, tmp_path: Path
) -> None:
    facts = quantized(plain, tmp_path / "out", "--scheme", scheme)
    weights = dequantized_weights(tmp_path / "out", facts)
    before = load_file(plain / "model.safetensors")
    assert weights.keys() == before.keys()
    for name, weight in weights.items():
        exact = before[name].float()
        bound = OFF.get(scheme, 0.6) if is_linear(name) else 0
        assert float((weight - exact).norm()) <= bound * float(exact.norm())
    assert any(not torch.equal(weight, before[name].float()) for name, weight in weights.items())
    found = logprobs(
        LLAMA, plain, load_file(tmp_path / "out" / "model.safetensors"), CompressedTensors(facts)
    )
    cosine = torch.nn.functional.cosine_similarity(found, logprobs(LLAMA, plain, weights), dim=-1)
    assert float(cosine.min()) >= (
        0.999 if scheme == "nvfp4" else 0.9999
    )  # the library rounds that to bfloat16
    assert (tmp_path / "out" / "tokenizer.json").is_file()


def test_experts_are_quantized_and_routers_stay_plain(tmp_path: Path) -> None:
    folder = make_checkpoint(EXPERTS, tmp_path / "model")
    facts = quantized(
        folder,
        tmp_path / "out",
        "--scheme",
        "w4a16",
        "--group-size",
        "16",
        "--ignore",
        "re:.*k_proj",
    )
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert "model.layers.0.mlp.experts.3.down_proj.weight_packed" in stored
    plain_ones = {"model.layers.0.mlp.gate", "model.layers.2.self_attn.k_proj", "lm_head"}
    assert plain_ones <= set(facts["ignore"])
    assert all(f"{name}.weight" in stored for name in plain_ones)
    weights = dequantized_weights(tmp_path / "out", facts)
    assert_close(
        logprobs(EXPERTS, folder, stored, CompressedTensors(facts)),
        logprobs(EXPERTS, folder, weights),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme", ["int8", "int4", "w8a8", "fp8"]
)  # packed zero points it takes for misshapen
def test_quantized_checkpoint_loads_in_transformers(
    scheme: str, plain: Path, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors")
    import transformers

    facts = quantized(plain, tmp_path / "out", "--scheme", scheme)
    for group in facts[
        "config_groups"
    ].values():  # it would round activations, and this engine does not
        group["input_activations"] = None
    path = tmp_path / "out" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": facts}))
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32
    )
    ids = torch.arange(100, 133)[None]
    with torch.no_grad():
        expected = model(ids).logits[0].float().log_softmax(-1)
    weights = dequantized_weights(tmp_path / "out", facts)
    cosine = torch.nn.functional.cosine_similarity(
        logprobs(LLAMA, plain, weights), expected, dim=-1
    )
    assert float(cosine.min()) >= 0.999


def test_calibration_text_weighs_large_inputs(plain: Path, tmp_path: Path) -> None:
    """Better rounding shows in the output: log-probabilities are closer to the plain model's."""
    text = tmp_path / "text.txt"
    text.write_text(
        "It was a bright cold day in April, and the clocks were striking thirteen. " * 30
    )
    flags = ("--scheme", "int3", "--group-size", "32")
    near = dequantized_weights(
        tmp_path / "aware", quantized(plain, tmp_path / "aware", *flags, "--scales", str(text))
    )
    far = dequantized_weights(tmp_path / "nearest", quantized(plain, tmp_path / "nearest", *flags))
    exact = load_file(plain / "model.safetensors")
    assert any(not torch.equal(near[name], far[name]) for name in near)
    expected = logprobs(LLAMA, plain, exact)
    error = [
        float((logprobs(LLAMA, plain, weights) - expected).square().mean())
        for weights in (near, far)
    ]
    assert error[0] < error[1]


def test_invalid_flags_are_rejected_before_writing(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*flags: str, folder: Path = plain, out: Path = tmp_path / "out") -> str:
        assert main(["quantize", str(folder), str(out), *flags]) != 0
        assert not (tmp_path / "out").exists()
        return capsys.readouterr().err

    (tmp_path / "file").write_text("in the way")
    assert "--scheme 'int5' is not known" in refused("--scheme", "int5")
    assert (
        "96 inputs, which do not divide into groups of 64; --group-size may be 8, 16, 32"
        in refused("--group-size", "64")
    )
    assert "--group-size: got 0" in refused("--group-size", "0")
    assert "--group-size: got -5" in refused("--group-size", "-5")
    assert "--ignore: got '('; expected a supported regular expression" in refused(
        "--ignore", "re:("
    )
    assert "--ignore 're:(.*)*!' is no module" in refused("--ignore", "re:(.*)*!")
    assert "--scheme '' is not known. Known:" in refused("--scheme", "")
    assert "cannot be written" in refused(out=tmp_path / "file" / "out")
    assert "--group-size is for integers" in refused("--scheme", "fp8", "--group-size", "32")
    assert "--ignore 'q_prj' is no module" in refused("--ignore", "q_prj")
    assert "exists and is not an empty folder" in refused(out=plain)
    assert "--scales needs an integer scheme" in refused("--scheme", "fp8", "--scales", "text")
    other = Path(shutil.copytree(plain, tmp_path / "other"))
    settings = json.loads((other / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8"}
    (other / "config.json").write_text(json.dumps(settings))
    assert "is quantized (fp8)" in refused(folder=other)


def test_link_out_of_the_checkpoint_is_not_copied(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository = tmp_path / "models--a--b"
    folder = shutil.copytree(plain, repository / "snapshots" / "0")
    (repository / "blobs").mkdir()
    (repository / "blobs" / "1").write_text("of the repository")
    (folder / "README.md").symlink_to("../../blobs/1")
    quantized(folder, tmp_path / "good")
    assert (tmp_path / "good" / "README.md").read_text() == "of the repository"
    (tmp_path / "private").write_text("private")
    (folder / "notes.txt").symlink_to(tmp_path / "private")
    assert main(["quantize", str(folder), str(tmp_path / "out")]) != 0
    assert "notes.txt: got a link out of the checkpoint" in capsys.readouterr().err
    (folder / "notes.txt").unlink()
    (folder / "notes.txt").touch()
    os.truncate(folder / "notes.txt", 10 << 30)
    assert main(["quantize", str(folder), str(tmp_path / "out")]) != 0
    assert "notes.txt: got 10737418240 bytes" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_default_group_size_divides_all_layers() -> None:
    assert group_for(SCHEMES["int4"], None, {"a": 256, "b": 96}) == 32
    assert group_for(SCHEMES["int4"], None, {"a": 24}) == -1
    with pytest.raises(
        ConfigError,
        match=r"a has 20 inputs, .* no group divides the inputs of all layers, or leave",
    ):
        group_for(SCHEMES["nvfp4"], None, {"a": 20})


def test_shards_have_the_given_size_and_an_index(tmp_path: Path) -> None:
    tensors = {f"t{index}": torch.randn(5, 7).to(torch.bfloat16) for index in range(5)}
    tensors["empty"] = torch.empty(0, 3)
    tensors["one"] = torch.tensor(3.0)
    pieces = [Piece(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
    files = split_into_files(pieces, file_bytes=100)
    write(tmp_path, files, iter(tensors.items()))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = {name: load_file(tmp_path / file)[name] for name, file in index["weight_map"].items()}
    assert len(set(index["weight_map"].values())) == len(files) > 1
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    save_file(tensors, tmp_path / "whole.safetensors")
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
