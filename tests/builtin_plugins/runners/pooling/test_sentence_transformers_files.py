"""sentence-transformers' files: pooling, dense layers, prompts, truncation, and precedence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import BertModel

from core import LLM, PoolingParams
from core.errors import ConfigError, InvalidRequest, ModelError

Open = Callable[..., LLM]
TEXT = "the other then, on the in"
PREFIX = "query: "


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path, checkpoint: Callable[..., Path]) -> Path:
    """A model as sentence-transformers saves it: mean, two products, normalised, with prompts."""
    path = tmp_path / "model"
    shutil.copytree(checkpoint("BertModel"), path)
    kinds = ["Transformer", "Pooling", "Dense", "Dense", "Normalize"]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    write(path, "modules.json", modules)
    write(
        path,
        "1_Pooling/config.json",
        {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True},
    )
    generator = torch.Generator().manual_seed(0)
    for index, (width, size, activation) in ((2, (64, 48, "Tanh")), (3, (48, 32, "Identity"))):
        stated = {"in_features": width, "out_features": size, "bias": index == 2}
        write(
            path,
            f"{index}_Dense/config.json",
            {**stated, "activation_function": f"torch.nn.modules.{activation}"},
        )
        tensors = {"linear.weight": torch.randn(size, width, generator=generator) / 8}
        if index == 2:
            tensors["linear.bias"] = torch.randn(size, generator=generator)
        save_file(tensors, path / f"{index}_Dense" / "model.safetensors")
    prompts = {"query": PREFIX, "document": ""}
    write(
        path, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None}
    )
    write(path, "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    return path


@torch.inference_mode()
def by_formula(folder: Path, ids: list[int]) -> torch.Tensor:
    """Return the expected embedding of the modules."""
    hidden = BertModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]
    first, second = (load_file(folder / f"{index}_Dense" / "model.safetensors") for index in (2, 3))
    x = torch.tanh(F.linear(hidden.mean(0), first["linear.weight"], first["linear.bias"]))
    return F.normalize(F.linear(x, second["linear.weight"]), dim=0)


def ids_of(llm: LLM, text: str) -> list[int]:
    tokenizer = llm.get_tokenizer()
    assert tokenizer is not None
    return tokenizer.encode(text)


def embedding(llm: LLM, *arguments: Any, **options: Any) -> torch.Tensor:
    return torch.tensor(llm.embed(*arguments, use_tqdm=False, **options)[0].outputs.embedding)


def test_sentence_transformers_modules_are_computed(folder: Path, engine: Open) -> None:
    with engine(folder, max_model_len=None) as llm:
        assert llm.config.model.max_model_len == 40
        found = embedding(llm, TEXT)
        ids = ids_of(llm, TEXT)
        torch.testing.assert_close(found, by_formula(folder, ids), atol=1e-4, rtol=0)
        with_prompt = embedding(llm, TEXT, prompt_name="query")
        torch.testing.assert_close(
            with_prompt, by_formula(folder, ids_of(llm, PREFIX + TEXT)), atol=1e-4, rtol=0
        )
        with pytest.raises(InvalidRequest, match="'querry' is not known; did you mean 'query'"):
            embedding(llm, TEXT, prompt_name="querry")


MODES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
    "weighted_mean": "pooling_mode_weightedmean_tokens",
    "last": "pooling_mode_lasttoken",
}
"""In the order in which sentence-transformers puts their vectors together."""


@torch.inference_mode()
def by_modes(folder: Path, ids: list[int], modes: list[str], start: int = 0) -> torch.Tensor:
    """Return the concatenated vectors of several poolers, without the first `start` tokens."""
    hidden = BertModel.from_pretrained(folder).eval()(torch.tensor([ids])).last_hidden_state[0]
    positions = torch.arange(1, len(ids) + 1)[start:, None]
    own = hidden[start:]
    found = {
        "cls": hidden[0],
        "max": own.amax(0),
        "mean": own.mean(0),
        "mean_sqrt_len": own.sum(0) / len(own) ** 0.5,
        "weighted_mean": (own * positions).sum(0) / positions.sum(),
        "last": hidden[-1],
    }
    return torch.cat([found[mode] for mode in modes])


def keep_pooling_only(folder: Path, pooling: dict[str, Any]) -> None:
    write(folder, "modules.json", json.loads((folder / "modules.json").read_text())[:2])
    write(folder, "1_Pooling/config.json", {"word_embedding_dimension": 64, **pooling})


@pytest.mark.parametrize("modes", [["mean", "max", "cls"], ["last", "weighted_mean"], list(MODES)])
def test_several_poolers_are_concatenated(modes: list[str], folder: Path, engine: Open) -> None:
    keep_pooling_only(folder, {MODES[mode]: True for mode in modes})
    with engine(folder, max_model_len=None) as llm:
        found = embedding(llm, TEXT)
        ids = ids_of(llm, TEXT)
    expected = by_modes(folder, ids, [mode for mode in MODES if mode in modes])
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("mode", [["max", "cls"], "max+cls"])
def test_pooling_mode_list_sets_pooler_order(mode: Any, folder: Path, engine: Open) -> None:
    keep_pooling_only(folder, {"pooling_mode": mode})
    with engine(folder, max_model_len=None) as llm:
        expected = by_modes(folder, ids_of(llm, TEXT), ["max", "cls"])
        torch.testing.assert_close(embedding(llm, TEXT), expected, atol=1e-4, rtol=1e-4)


def test_dense_layers_read_all_poolers(folder: Path, engine: Open) -> None:
    tensors = load_file(folder / "2_Dense" / "model.safetensors")
    wide = torch.cat([tensors["linear.weight"], -tensors["linear.weight"]], dim=1)
    save_file({**tensors, "linear.weight": wide}, folder / "2_Dense" / "model.safetensors")
    with engine(folder, max_model_len=None, pooler_config={"pooling_type": "CLS+MAX"}) as llm:
        both = by_modes(folder, ids_of(llm, TEXT), ["cls", "max"])
        found = embedding(llm, TEXT)
    last = load_file(folder / "3_Dense" / "model.safetensors")["linear.weight"]
    expected = F.normalize(last @ torch.tanh(wide @ both + tensors["linear.bias"]), dim=0)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_include_prompt_false_excludes_prompt_tokens(folder: Path, engine: Open) -> None:
    modes = ["cls", "max", "mean", "mean_sqrt_len", "weighted_mean", "last"]
    keep_pooling_only(folder, {MODES[mode]: True for mode in modes} | {"include_prompt": False})
    with engine(folder, max_model_len=None) as llm:
        ids = ids_of(llm, PREFIX + TEXT)
        before = ids_of(llm, PREFIX)
        expected = by_modes(folder, ids, modes, start=len(before) - 1)
        found = embedding(llm, TEXT, prompt_name="query")
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
        plain = by_modes(folder, ids_of(llm, TEXT), modes)
        torch.testing.assert_close(embedding(llm, TEXT), plain, atol=1e-4, rtol=1e-4)
        with pytest.raises(
            InvalidRequest, match=r"leaves 4 tokens, and the prompt before the text has \d+"
        ):
            embedding(llm, TEXT, prompt_name="query", truncate_prompt_tokens=4)


def test_default_prompt_precedes_every_text(folder: Path, engine: Open) -> None:
    write(
        folder,
        "config_sentence_transformers.json",
        {"prompts": {"q": PREFIX}, "default_prompt_name": "q"},
    )
    with engine(folder, max_model_len=None) as llm:
        expected = by_formula(folder, ids_of(llm, PREFIX + TEXT))
        torch.testing.assert_close(embedding(llm, TEXT), expected, atol=1e-4, rtol=0)


def test_truncation_preserves_last_special_token(folder: Path, engine: Open) -> None:
    with engine(folder, max_model_len=None) as llm:
        long = TEXT * 9
        whole = ids_of(llm, long)
        with pytest.raises(InvalidRequest, match=f"has {len(whole)} tokens"):
            embedding(llm, long)
        for keep, length in ((-1, 40), (12, 12)):
            output = llm.embed(long, truncate_prompt_tokens=keep, use_tqdm=False)[0]
            assert output.prompt_token_ids == [*whole[: length - 1], whole[-1]]


def test_pooler_config_overrides_files_and_defaults(folder: Path, engine: Open) -> None:
    for config, is_unit in (
        (None, True),
        ({"normalize": False}, False),
        ({"pooling_type": "CLS"}, True),
    ):
        with engine(folder, max_model_len=None, pooler_config=config) as llm:
            found = embedding(llm, TEXT)
            assert (abs(found.norm() - 1) < 1e-5) == is_unit
            assert len(found) == 32
    (folder / "modules.json").unlink()
    with engine(folder, max_model_len=40) as llm:
        assert len(embedding(llm, TEXT)) == 64


def test_embeddings_without_normalize_module_are_not_normalised(folder: Path, engine: Open) -> None:
    modules = json.loads((folder / "modules.json").read_text())[:2]
    write(folder, "modules.json", modules)
    with engine(folder, max_model_len=None) as llm:
        plain = embedding(llm, TEXT)
        assert plain.norm() > 2
        unit = embedding(llm, TEXT, PoolingParams(normalize=True))
        torch.testing.assert_close(unit, F.normalize(plain, dim=0))


def test_dimensions_require_matryoshka_model(folder: Path, engine: Open) -> None:
    with (
        engine(folder, max_model_len=None) as llm,
        pytest.raises(InvalidRequest, match="does not support truncated embeddings"),
    ):
        embedding(llm, TEXT, PoolingParams(dimensions=8))
    sizes = {"is_matryoshka": True, "matryoshka_dimensions": [8, 16, 32]}
    with engine(folder, max_model_len=None, hf_overrides=sizes) as llm:
        whole = embedding(llm, TEXT)
        short = embedding(llm, TEXT, PoolingParams(dimensions=8))
        torch.testing.assert_close(short, F.normalize(whole[:8], dim=0))
        for wrong, message in (
            (12, "must be one of 8, 16, 32, not 12"),
            (64, "an embedding has 32 numbers"),
        ):
            with pytest.raises(InvalidRequest, match=message):
                embedding(llm, TEXT, PoolingParams(dimensions=wrong))
    with engine(folder, max_model_len=None, pooler_config={"dimensions": 16}) as llm:
        torch.testing.assert_close(embedding(llm, TEXT), F.normalize(whole[:16], dim=0))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", {"idx": 0}, "is not a list of modules"),
        (
            "modules.json",
            [{"idx": 0, "path": "", "type": "x.Magic"}],
            "the module class 'Magic'",
        ),
        (
            "modules.json",
            [{"idx": 0, "path": "../x", "type": "x.Dense"}],
            "expected one in the model's folder",
        ),
        ("1_Pooling/config.json", {}, "selects no pooler"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": 3},
            "pooling_mode is 3; it must be a name, or a list of names",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "dance"},
            "pooler: got 'dance'; available: all, cls",
        ),
        (
            "2_Dense/config.json",
            {"out_features": 48, "activation_function": "x.Swoosh"},
            "activation 'Swoosh'",
        ),
        ("2_Dense/config.json", {"activation_function": "x.Tanh"}, "out_features is None"),
    ],
)
def test_invalid_sentence_transformers_files_are_rejected(
    name: str, content: Any, message: str, folder: Path, engine: Open
) -> None:
    write(folder, name, content)
    with pytest.raises(ModelError, match=message):
        engine(folder, max_model_len=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"pooler_config": {"poling_type": "LAST"}},
            "'poling_type' is not known; did you mean 'pooling_type'",
        ),
        (
            {"pooler_config": {"pooling_type": "FIRST"}},
            "unknown pooler 'first'; available: all, cls",
        ),
        (
            {"pooler_config": {"seq_pooling_type": "ALL"}},
            "seq_pooling_type 'all' gives many vectors",
        ),
        ({"pooler_config": {"dimensions": "8"}}, "dimensions must be an integer from 1, not '8'"),
        (
            {"pooler_config": {"pooling_type": "CLS+ALL"}},
            "'cls\\+all' joins vectors of prompts with those of tokens",
        ),
        (
            {"pooler_config": {"max_embed_len": 90}},
            "max_embed_len 90 is the longest text embedded in chunks; set",
        ),
        (
            {"pooler_config": {"enable_chunked_processing": 1}},
            "enable_chunked_processing must be true or false, not 1",
        ),
        ({"pooler_config": {"normalize": "no"}}, "normalize must be true or false, not 'no'"),
        ({"pooler_config": {"logit_sigma": 0}}, "logit_sigma must be a number but 0, not 0"),
        (
            {"pooler_config": {"returned_token_ids": 3}},
            "returned_token_ids must be a list of integers from 0, not 3",
        ),
        (
            {"pooler_config": {"returned_token_ids": [3]}},
            "are not there; this model gives embeddings",
        ),
        (
            {"pooler_config": {"dimensions": 64}},
            "dimensions 64 is not possible; the model's embeddings have 32",
        ),
        ({"runner": "generate"}, "--runner generate: 'BertModel' has no head that makes tokens"),
        ({"convert": "classify"}, "--convert classify: 'BertModel' is for 'embed' already"),
    ],
)
def test_invalid_pooling_flags_are_rejected(
    settings: dict[str, Any], message: str, folder: Path, engine: Open
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine(folder, max_model_len=None, **settings)
