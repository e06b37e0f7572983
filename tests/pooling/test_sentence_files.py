"""sentence-transformers' files beside a checkpoint: pooling, layers behind it, prompts, cutting; and who wins."""

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
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    write(path, "modules.json", modules)
    write(path, "1_Pooling/config.json", {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True})
    generator = torch.Generator().manual_seed(0)
    for index, (width, size, activation) in ((2, (64, 48, "Tanh")), (3, (48, 32, "Identity"))):
        stated = {"in_features": width, "out_features": size, "bias": index == 2}
        write(path, f"{index}_Dense/config.json", {**stated, "activation_function": f"torch.nn.modules.{activation}"})
        tensors = {"linear.weight": torch.randn(size, width, generator=generator) / 8}
        if index == 2:
            tensors["linear.bias"] = torch.randn(size, generator=generator)
        save_file(tensors, path / f"{index}_Dense" / "model.safetensors")
    prompts = {"query": PREFIX, "document": ""}
    write(path, "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": None})
    write(path, "sentence_bert_config.json", {"max_seq_length": 40, "do_lower_case": False})
    return path


@torch.inference_mode()
def by_formula(folder: Path, ids: list[int]) -> torch.Tensor:
    """Return the embedding as the modules say, one after the other."""
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


def test_modules_are_computed_as_their_files_say(folder: Path, engine: Open) -> None:
    with engine(folder, max_model_len=None) as llm:
        assert llm.config.model.max_model_len == 40
        found, ids = embedding(llm, TEXT), ids_of(llm, TEXT)
        torch.testing.assert_close(found, by_formula(folder, ids), atol=1e-4, rtol=0)
        with_prompt = embedding(llm, TEXT, prompt_name="query")
        torch.testing.assert_close(with_prompt, by_formula(folder, ids_of(llm, PREFIX + TEXT)), atol=1e-4, rtol=0)
        with pytest.raises(InvalidRequest, match="'querry' is not known; did you mean 'query'"):
            embedding(llm, TEXT, prompt_name="querry")


def test_a_default_prompt_is_put_before_every_text(folder: Path, engine: Open) -> None:
    write(folder, "config_sentence_transformers.json", {"prompts": {"q": PREFIX}, "default_prompt_name": "q"})
    with engine(folder, max_model_len=None) as llm:
        expected = by_formula(folder, ids_of(llm, PREFIX + TEXT))
        torch.testing.assert_close(embedding(llm, TEXT), expected, atol=1e-4, rtol=0)


def test_long_texts_are_cut_before_their_last_special_token(folder: Path, engine: Open) -> None:
    with engine(folder, max_model_len=None) as llm:
        long = TEXT * 9
        whole = ids_of(llm, long)
        with pytest.raises(InvalidRequest, match=f"has {len(whole)} tokens"):
            embedding(llm, long)
        for keep, length in ((-1, 40), (12, 12)):
            output = llm.embed(long, truncate_prompt_tokens=keep, use_tqdm=False)[0]
            assert output.prompt_token_ids == [*whole[: length - 1], whole[-1]]


def test_the_user_wins_over_files_and_files_over_defaults(folder: Path, engine: Open) -> None:
    for config, is_unit in ((None, True), ({"normalize": False}, False), ({"pooling_type": "CLS"}, True)):
        with engine(folder, max_model_len=None, pooler_config=config) as llm:
            found = embedding(llm, TEXT)
            assert (abs(found.norm() - 1) < 1e-5) == is_unit
            assert len(found) == 32
    (folder / "modules.json").unlink()
    with engine(folder, max_model_len=40) as llm:
        assert len(embedding(llm, TEXT)) == 64


def test_files_without_a_norm_give_embeddings_of_any_length(folder: Path, engine: Open) -> None:
    modules = json.loads((folder / "modules.json").read_text())[:2]
    write(folder, "modules.json", modules)
    with engine(folder, max_model_len=None) as llm:
        plain = embedding(llm, TEXT)
        assert plain.norm() > 2
        unit = embedding(llm, TEXT, PoolingParams(normalize=True))
        torch.testing.assert_close(unit, F.normalize(plain, dim=0))


def test_embeddings_are_cut_only_where_the_model_was_made_for_it(folder: Path, engine: Open) -> None:
    with engine(folder, max_model_len=None) as llm, pytest.raises(InvalidRequest, match="not made to be cut"):
        embedding(llm, TEXT, PoolingParams(dimensions=8))
    sizes = {"is_matryoshka": True, "matryoshka_dimensions": [8, 16, 32]}
    with engine(folder, max_model_len=None, hf_overrides=sizes) as llm:
        whole, short = embedding(llm, TEXT), embedding(llm, TEXT, PoolingParams(dimensions=8))
        torch.testing.assert_close(short, F.normalize(whole[:8], dim=0))
        for wrong, message in ((12, "must be one of 8, 16, 32, not 12"), (64, "more than the 32 numbers")):
            with pytest.raises(InvalidRequest, match=message):
                embedding(llm, TEXT, PoolingParams(dimensions=wrong))
    with engine(folder, max_model_len=None, pooler_config={"dimensions": 16}) as llm:
        torch.testing.assert_close(embedding(llm, TEXT), F.normalize(whole[:16], dim=0))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("modules.json", {"idx": 0}, "is no list of modules"),
        ("modules.json", [{"idx": 0, "path": "", "type": "x.Magic"}], "a module of the class 'Magic'"),
        ("modules.json", [{"idx": 0, "path": "../x", "type": "x.Dense"}], "outside its own"),
        ("1_Pooling/config.json", {}, "asks for 0 ways of pooling"),
        ("1_Pooling/config.json", {"pooling_mode": "dance"}, "the model wants the pooler 'dance'; available: all, cls"),
        ("2_Dense/config.json", {"out_features": 48, "activation_function": "x.Swoosh"}, "activation 'Swoosh'"),
        ("2_Dense/config.json", {"activation_function": "x.Tanh"}, "out_features is None"),
    ],
)
def test_files_that_make_no_sense_are_refused_by_name(
    name: str, content: Any, message: str, folder: Path, engine: Open
) -> None:
    write(folder, name, content)
    with pytest.raises(ModelError, match=message):
        engine(folder, max_model_len=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooler_config": {"poling_type": "LAST"}}, "'poling_type' is not known; did you mean 'pooling_type'"),
        ({"pooler_config": {"pooling_type": "FIRST"}}, "unknown pooler 'first'; available: all, cls"),
        ({"pooler_config": {"seq_pooling_type": "ALL"}}, "seq_pooling_type 'all' gives many vectors"),
        ({"pooler_config": {"dimensions": "8"}}, "dimensions must be a number, not '8'"),
        ({"runner": "generate"}, "--runner generate: 'BertModel' has no head that makes tokens"),
        ({"convert": "classify"}, "--convert classify: 'BertModel' is for 'embed' already"),
    ],
)
def test_wishes_that_make_no_sense_are_refused_by_name(
    settings: dict[str, Any], message: str, folder: Path, engine: Open
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine(folder, max_model_len=None, **settings)
