"""Where only the stores know what there is, they are asked, and nobody waits for an answer that
does not come.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.testing import conformance
from core.testing.checkpoints import make_checkpoint
from core.testing.conformance import Case
from tests.kv_connectors.trial import FAKE, PROMPTS, Tokens, open_llm, run, settle, traffic

PLUGINS = [*FAKE, "tests.kv_connectors.asked"]


def open_asking(folder: Path, *, fault: str = "", **options: Any) -> LLM:
    return open_llm("asked", {"folder": str(folder), "fault": fault}, plugins=PLUGINS, **options)


def fill(folder: Path, **options: Any) -> None:
    with open_asking(folder, **options) as llm:
        run(llm)
        settle(llm)


@pytest.mark.parametrize("case", conformance.cases("tests.kv_connectors.asked"), ids=str)
def test_a_store_that_is_asked_holds_to_the_contract(case: Case) -> None:
    case()


def test_what_another_engine_has_just_written_is_found_with_the_next_request(
    expected: Tokens, tmp_path: Path
) -> None:
    with open_asking(tmp_path, transfer={"kv_role": "kv_consumer"}) as reader:
        assert run(reader, PROMPTS[:1])[1] == [0]
        assert reader.reset_prefix_cache()
        fill(tmp_path)
        tokens, found = run(reader)
        assert (tokens, min(found)) == (expected, 64)
        assert traffic(reader).counts.unloaded == 0


def test_what_is_found_here_is_not_asked_for(tmp_path: Path) -> None:
    with open_asking(tmp_path) as llm:
        run(llm, PROMPTS[:1] * 2)
        settle(llm)
        asked = traffic(llm)._looking._num_looks
        run(llm, [PROMPTS[0][:64]])
        assert llm.reset_prefix_cache()
        run(llm, [PROMPTS[0][:64]])
        assert traffic(llm)._looking._num_looks == asked


def test_who_only_computes_for_others_asks_nothing(tmp_path: Path) -> None:
    with open_asking(tmp_path, transfer={"kv_role": "kv_producer"}) as llm:
        run(llm, PROMPTS[:1])
        assert traffic(llm)._looking is None


@pytest.mark.parametrize("fault", ["fails", "hangs"])
def test_a_store_that_cannot_say_costs_a_recomputation(
    expected: Tokens, fault: str, tmp_path: Path
) -> None:
    fill(tmp_path)
    limit: dict[str, Any] = {"transfer": {"timeout_s": 0.5}} if fault == "hangs" else {}
    with open_asking(tmp_path, fault=fault, **limit) as llm:
        tokens, found = run(llm)
        assert tokens == expected
        assert max(found) < 64  # what this engine has stored meanwhile, it knows of
        assert traffic(llm).info()["state"] == "degraded"
        assert llm.reset_prefix_cache()
        assert run(llm)[0] == expected  # it is left alone, or waited for no longer


def test_a_request_that_is_called_off_is_waited_for_by_nobody(
    expected: Tokens, tmp_path: Path
) -> None:
    with open_asking(tmp_path) as llm:
        half = traffic(llm)
        half._looking.forget("nobody")
        assert run(llm)[0] == expected
        assert not half._looking._asked
        assert not half._looking._looks
        assert not half._looking.unasked


@pytest.mark.slow
@pytest.mark.parametrize("split", [(2, 1), (1, 2)], ids=["tensor 2", "pipeline 2"])
def test_what_all_ranks_have_is_found(split: tuple[int, int], tmp_path: Path) -> None:
    checkpoint = make_checkpoint("Qwen3ForCausalLM", tmp_path / "model", seed=1)
    prompts = [[(7 * i + 3 * j * j) % 290 for j in range(60)] for i in range(3)]
    given = {
        "kv_connector": "asked",
        "kv_connector_extra_config": {"folder": str(tmp_path / "blocks")},
    }
    tensor, pipeline = split
    seen = []
    for _ in range(2):
        with LLM(
            str(checkpoint), tensor_parallel_size=tensor, pipeline_parallel_size=pipeline, kv_transfer_config=given,
            dtype="float32", max_model_len=96, kv_cache_memory_bytes=8 << 20, max_num_seqs=4, plugins=PLUGINS,
        ) as llm:  # fmt: skip
            seen.append(run(llm, prompts))
    (first, _), (second, found) = seen
    assert (first, min(found)) == (second, 48)
