"""The backend calls FlashInfer correctly, tested with a stub with its signatures in torch."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from engine_flashinfer import plugin
from engine_flashinfer.backend import IN_FLIGHT, FlashInferAttention

from core.api import Entry
from core.model_spec.attention_params import AttentionParams
from core.plugin.facts import why_not
from core.testing.attention_oracle import PagedSequences, dense_attention
from core.testing.conformance import Subject, attention_backends
from core.testing.released_signatures import assert_release_takes, read_released

PARAMS = AttentionParams(heads=4, kv_heads=2, head_size=64, scale=0.1)


class Planner:
    """`BatchPrefillWithPagedKVCacheWrapper` of FlashInfer 0.2.8 and later."""

    num_made = 0

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "NHD") -> None:
        assert (float_workspace_buffer.dtype, kv_layout) == (torch.uint8, "NHD")
        Planner.num_made += 1

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        indices = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert {each.dtype for each in indices} == {torch.int32}
        assert q_data_type == kv_data_type
        assert sm_scale is not None
        self._indices = indices
        self._size = page_size
        self._dtype = q_data_type
        window = None if window_left < 0 else window_left + 1
        self._params = AttentionParams(
            num_qo_heads,
            num_kv_heads,
            head_dim_qk,
            sm_scale,
            window=window,
            softcap=logits_soft_cap,
            causal=causal,
        )

    def run(self, q: torch.Tensor, paged_kv_cache: torch.Tensor) -> torch.Tensor:
        assert q.is_contiguous()
        assert q.dtype == self._dtype
        queries, pages, numbers, last = (each.tolist() for each in self._indices)
        out = torch.empty_like(q)
        for i, (start, end) in enumerate(pairwise(queries)):
            own = paged_kv_cache[numbers[pages[i] : pages[i + 1]]]
            keys, values = (own[:, vector].flatten(0, 1) for vector in range(2))
            length = (pages[i + 1] - pages[i] - 1) * self._size + last[i]
            first = length - (end - start)
            out[start:end] = dense_attention(
                self._params, q[start:end], keys[:length], values[:length], first
            ).to(q.dtype)
        return out


@pytest.fixture(autouse=True)
def stub_library(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = Planner
    monkeypatch.setitem(sys.modules, "flashinfer", module)


@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_released_library_takes_the_calls_of_the_stub(method: str) -> None:
    released = read_released(Path(__file__).with_name("released.pyi"))
    planner = released["BatchPrefillWithPagedKVCacheWrapper"]
    assert_release_takes(getattr(Planner, method), getattr(planner, method))


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [value for name, value in vars(attention_backends).items() if name.startswith("check_")],
)
def test_backend_conforms(check: Any) -> None:
    if check is attention_backends.check_nothing_is_read_back:
        pytest.skip("the stub copies to the host")
    (entry,) = plugin.engine_attention_backends()
    when = {
        name: target for name, target in entry.when.items() if name not in ("device", "head_size")
    }
    check(
        Subject(
            "attention_backends",
            Entry("flashinfer", FlashInferAttention, "in torch", when=when),
            FlashInferAttention,
        )
    )


@pytest.mark.parametrize(
    "params",
    [PARAMS, AttentionParams(4, 2, 64, 0.1, window=5), AttentionParams(2, 1, 64, 0.1, softcap=2.0)],
    ids=str,
)
def test_prefill_chunks_and_decode_equal_dense_attention(params: AttentionParams) -> None:
    sequences = PagedSequences(
        FlashInferAttention(),
        params,
        block_size=4,
        num_sequences=3,
        max_len=64,
        dtype=torch.bfloat16,
    )
    steps: tuple[dict[int, int], ...] = ({0: 1, 1: 17}, {2: 6, 0: 1, 1: 3}, {0: 1, 1: 1, 2: 1})
    for counts in steps:
        got, truth = sequences.step(counts)
        torch.testing.assert_close(got.double(), truth, atol=2e-2, rtol=2e-2)


def test_equal_layers_share_one_plan_and_planners_are_reused() -> None:
    backend = FlashInferAttention()
    sequences = PagedSequences(backend, PARAMS, num_sequences=1, dtype=torch.bfloat16)
    before = Planner.num_made
    for _ in range(5):
        inputs, query, key, value = sequences.tokens({0: 2})
        plan = backend.prepare(inputs)
        outs = [backend.attend(PARAMS, query, key, value, sequences.cache, plan) for _ in range(3)]
        assert torch.equal(outs[0], outs[2])
    assert Planner.num_made - before == IN_FLIGHT


def test_backend_is_unavailable_without_its_library() -> None:
    (entry,) = plugin.engine_attention_backends()
    bare = replace(entry, when={})
    assert "flashinfer-python" in (why_not(bare, {}) or "")


def test_vllm_backend_name_is_accepted() -> None:
    assert plugin.engine_resolve({"attention_backend": "FLASHINFER"}) == {
        "attention_backend": "flashinfer"
    }
    assert plugin.engine_resolve({"attention_backend": "flashinfer"}) is None
