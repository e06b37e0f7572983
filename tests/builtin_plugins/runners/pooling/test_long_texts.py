"""Texts beyond the context are embedded in chunks, weighted by their tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core import LLM, AsyncLLM, PoolingParams, PoolingRequestOutput
from core.errors import ConfigError, InvalidRequest

Checkpoint = Callable[..., Path]
Open = Callable[..., LLM]
ON = {"enable_chunked_processing": True}


def vectors(
    llm: LLM, prompts: list[list[int]], params: PoolingParams | None = None
) -> list[torch.Tensor]:
    return [torch.tensor(o.outputs.embedding) for o in llm.embed(prompts, params, use_tqdm=False)]


@pytest.mark.parametrize("name", ["BertModel", "Qwen3ForCausalLM"])
def test_long_text_embedding_is_mean_of_chunks(
    name: str, checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    with engine(checkpoint(name), runner="pooling", max_model_len=32, pooler_config=ON) as llm:
        found = vectors(llm, prompts)
        for ids, whole in zip(prompts, found, strict=True):
            pieces = [ids[start : start + 32] for start in range(0, len(ids), 32)]
            parts = torch.stack(vectors(llm, pieces))
            weights = torch.tensor([float(len(piece)) for piece in pieces])[:, None]
            torch.testing.assert_close(
                whole, (parts * weights).sum(0) / len(ids), atol=1e-5, rtol=0
            )
        output = llm.embed(prompts[0], use_tqdm=False)[0]
        assert output.prompt_token_ids == prompts[0]
        short = vectors(llm, [prompts[0]], PoolingParams(truncate_prompt_tokens=-1))[0]
        assert not torch.allclose(short, found[0], atol=1e-3)


def test_async_engine_chunks_long_texts_alike(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    folder = checkpoint("BertModel")
    with engine(folder, max_model_len=32, pooler_config=ON) as llm:
        expected = vectors(llm, prompts[:2])
    settings: dict[str, Any] = {
        "dtype": "float32",
        "num_threads": 1,
        "log_level": "error",
        "pooler_config": ON,
    }

    async def collect() -> list[PoolingRequestOutput[Any]]:
        served = AsyncLLM(
            str(folder), max_model_len=32, disable_frontend_multiprocessing=True, **settings
        )
        try:
            answers = [
                served.encode(ids, PoolingParams(), str(index))
                for index, ids in enumerate(prompts[:2])
            ]
            return list(await asyncio.gather(*(anext(answer) for answer in answers)))
        finally:
            served.shutdown()

    for index, (output, target) in enumerate(zip(asyncio.run(collect()), expected, strict=True)):
        assert (output.request_id, output.prompt_token_ids) == (str(index), prompts[index])
        torch.testing.assert_close(output.outputs.data, target, atol=1e-5, rtol=0)


def test_only_prompt_embeddings_are_chunked(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    too_long = pytest.raises(InvalidRequest, match="has 70 tokens, but the context holds 32")
    with engine(checkpoint("BertModel"), max_model_len=32, pooler_config=ON) as llm, too_long:
        llm.encode(prompts[0], pooling_task="token_embed", use_tqdm=False)
    with pytest.raises(
        ConfigError, match="enable_chunked_processing is for embeddings; this model gives scores"
    ):
        engine(checkpoint("BertForSequenceClassification"), pooler_config=ON)


def test_max_embed_len_limits_chunked_texts(
    checkpoint: Checkpoint, engine: Open, prompts: list[list[int]]
) -> None:
    limited = {**ON, "max_embed_len": 60}
    with engine(checkpoint("BertModel"), max_model_len=32, pooler_config=limited) as llm:
        assert len(vectors(llm, [prompts[3]])) == 1
        with pytest.raises(
            InvalidRequest, match="has 70 tokens, and max_embed_len of --pooler-config allows 60"
        ):
            vectors(llm, [prompts[0]])
