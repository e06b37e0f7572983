"""Adapters over HTTP: selected, listed, loaded, unloaded, replaced and resolved."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from builtin_plugins.features.lora.adapter_file import CONFIG, WEIGHTS
from builtin_plugins.routes.variants import variant_sources
from core import AsyncLLM
from tests.builtin_plugins.features.lora.api import CHAT, Api

DEMO = Path(__file__).parents[4] / "builtin_plugins" / "model_sources" / "demo" / "adapters"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that adapters may be loaded from."""
    root = tmp_path_factory.mktemp("adapters")
    for name in ("capitals", "pirate"):
        shutil.copytree(DEMO / name, root / name)
        state(root / name, base_model_name_or_path="demo:")
    return root


def state(folder: Path, **config: Any) -> None:
    """Change an adapter's config."""
    stated = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(stated | config))


@pytest.fixture(scope="module")
def api(root: Path) -> Iterator[Api]:
    engine = AsyncLLM(
        "demo:",
        served_model_name=["tiny"],
        lora_modules=["capitals=demo:capitals", json.dumps({"name": "arr", "path": "demo:pirate"})],
        max_loras=2,
        max_cpu_loras=3,
        lora_roots=[str(root)],
        lora_resolver_cache_dir=str(root),
        enable_runtime_lora=True,
        dtype="float32",
        max_model_len=128,
        kv_cache_memory_bytes=8 << 20,
        num_threads=1,
        log_level="error",
        disable_frontend_multiprocessing=True,
    )
    made = Api(engine)
    yield made
    made.close()


def test_model_field_selects_the_adapter(api: Api) -> None:
    plain, loud, arr = (api.chat(model) for model in ("tiny", "capitals", "arr"))
    assert loud == loud.upper() != plain
    assert arr.startswith("Arr!")
    replies = api.together(
        *(
            api.request("/v1/chat/completions", model=m, **CHAT)
            for m in ("arr", "tiny", "capitals") * 3
        )
    )
    found = [reply.json() for reply in replies]
    assert [each["choices"][0]["message"]["content"] for each in found] == [arr, plain, loud] * 3
    assert found[0]["model"] == "arr"
    prompt = {"prompt": "hello", "max_tokens": 5, "temperature": 0}
    texts = {
        m: api.post("/v1/completions", model=m, **prompt).json()["choices"][0]["text"]
        for m in ("tiny", "capitals")
    }
    assert texts["tiny"] != texts["capitals"]


def test_metrics_list_running_adapters(api: Api) -> None:
    async def look() -> str:
        """Return the page of a moment at which a request runs; one may end between two pages."""
        while True:
            task = asyncio.ensure_future(
                api.request("/v1/chat/completions", model="arr", **CHAT | {"max_tokens": 60})
            )
            page = ""
            while not task.done() and 'running_lora_adapters="arr"' not in page:
                page = (await api.request("/metrics", "GET")).text
            await task
            if 'running_lora_adapters="arr"' in page:
                return page

    (page,) = api.together(look())
    line = next(line for line in page.splitlines() if line.startswith("engine_lora_requests_info{"))
    assert 'max_lora="2"' in line
    assert 'running_lora_adapters="arr"' in line
    assert 'owner="lora_adapters"' in page


def test_models_route_lists_adapters_with_root_and_parent(api: Api) -> None:
    cards = api.models()
    assert list(cards)[:3] == ["tiny", "capitals", "arr"]
    assert cards["tiny"]["parent"] is None
    assert (cards["arr"]["parent"], cards["arr"]["root"]) == ("tiny", str(DEMO / "pirate"))
    (one,) = api.together(api.request("/v1/models/arr", "GET"))
    assert one.json() == cards["arr"]


def test_adapters_load_and_unload_at_run_time(api: Api, root: Path) -> None:
    load = {"lora_name": "sql_adapter", "lora_path": str(root / "pirate")}
    reply = api.post("/v1/load_lora_adapter", **load)
    assert (reply.status_code, reply.text) == (
        200,
        "Success: LoRA adapter 'sql_adapter' added successfully",
    )
    again = api.post("/v1/load_lora_adapter", **load)
    assert again.status_code == 400
    assert "has already been loaded" in again.json()["error"]["message"]
    assert api.chat("sql_adapter") == api.chat("arr")
    assert "sql_adapter" in api.models()
    reply = api.post("/v1/unload_lora_adapter", lora_name="sql_adapter")
    assert (reply.status_code, reply.text) == (
        200,
        "Success: LoRA adapter 'sql_adapter' removed successfully",
    )
    assert api.post("/v1/unload_lora_adapter", lora_name="sql_adapter").status_code == 404
    assert api.post("/v1/chat/completions", model="sql_adapter", **CHAT).status_code == 404


def test_adapter_unloads_by_its_id(api: Api, root: Path) -> None:
    path = "/v1/unload_lora_adapter"
    load = {"lora_name": "numbered", "lora_path": str(root / "pirate")}
    assert api.post("/v1/load_lora_adapter", **load).status_code == 200
    assert api.post(path, lora_name="").json()["error"]["param"] == "lora_name"
    wrong = api.post(path, lora_name="numbered", lora_int_id=10**6)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "lora_int_id")
    assert api.post(path, lora_int_id=10**6).status_code == 404
    (source,) = variant_sources(api.engine.registry)
    number = next(
        each.keywords["lora_request"].lora_int_id
        for each in source.variants()
        if each.name == "numbered"
    )
    assert api.post(path, lora_int_id=number).status_code == 200
    assert "numbered" not in api.models()


def test_load_inplace_replaces_the_adapter(api: Api, root: Path) -> None:
    folder = shutil.copytree(root / "pirate", root / "changing")
    load = {"lora_name": "changing_now", "lora_path": str(folder)}
    assert api.post("/v1/load_lora_adapter", **load).status_code == 200
    before = api.chat("changing_now")
    shutil.copy(root / "capitals" / WEIGHTS, folder / WEIGHTS)
    assert api.chat("changing_now") == before, "what is on disk counts when it is loaded"
    assert api.post("/v1/load_lora_adapter", **load, load_inplace=True).status_code == 200
    assert api.chat("changing_now") == api.chat("capitals") != before, (
        "and no prefix of before is found again"
    )
    api.post("/v1/unload_lora_adapter", lora_name="changing_now")


def test_resolvers_find_unknown_adapters(api: Api, root: Path) -> None:
    replies = api.together(
        *(api.request("/v1/chat/completions", model="pirate", **CHAT) for _ in range(4))
    )
    assert {reply.json()["choices"][0]["message"]["content"] for reply in replies} == {
        api.chat("arr")
    }
    assert "pirate" in api.models(), "what was found stays"
    other = shutil.copytree(root / "pirate", root / "other-model")
    state(other, base_model_name_or_path="llama")
    for name in ("unknown", "../pirate", "/etc", "other-model", ".."):
        assert api.post("/v1/chat/completions", model=name, **CHAT).status_code == 404, name


BAD = {
    "rank": ("LoRA rank 32 is greater than max_lora_rank 16", {"r": 32}),
    "dora": ("use_dora is not supported", {"use_dora": True}),
    "wrong base": ("trained on another model", None),
    "no target": (
        "no target for 'base_model.model.model.layers.9.mlp.up_proj.lora_A.weight'",
        None,
    ),
    "one factor": ("its lora_B is missing", None),
    "one layer": ("'model.layers.1.self_attn.q_proj' are missing", None),
    "nan": ("not finite", None),
    "columns": ("lora_A.weight': got shape", None),
    "rows": ("lora_B.weight': got shape", None),
    "outside": ("expected a folder in one of --lora-roots", None),
    "link outside": ("without links that leave them", None),
    "pipe": ("expected a regular file", None),
}


def spoil(folder: Path, what: str) -> Path:
    """Break an adapter; return the path to load."""
    config = BAD[what][1]
    if config:
        state(folder, **config)
    tensors = load_file(folder / WEIGHTS)
    up = "base_model.model.model.layers.{}.mlp.up_proj.lora_{}.weight"
    query = "layers.1.self_attn.q_proj"
    if what == "wrong base":
        tensors = {
            name: torch.zeros(t.shape[0] + 2 * ("lora_B" in name), t.shape[1])
            for name, t in tensors.items()
        }
    elif what == "no target":
        for factor in "AB":
            tensors[up.format(9, factor)] = tensors[up.format(0, factor)].clone()
    elif what == "one factor":
        del tensors[up.format(0, "B")]
    elif what == "one layer":
        tensors = {name: tensor for name, tensor in tensors.items() if query not in name}
    elif what in ("columns", "rows"):
        name = up.format(1, "A" if what == "columns" else "B")
        axis = int(what == "columns")
        tensors[name] = torch.cat([tensors[name]] * 2, axis)
    elif what == "nan":
        tensors[up.format(0, "A")][0, 0] = float("nan")
    save_file(tensors, folder / WEIGHTS)
    if what == "link outside":
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).symlink_to(DEMO / "pirate" / WEIGHTS)
    elif what == "pipe":
        (folder / WEIGHTS).unlink()
        os.mkfifo(folder / WEIGHTS)
    return DEMO / "pirate" if what == "outside" else folder


@pytest.mark.parametrize("what", BAD)
def test_bad_adapter_fails_alone_with_one_error(api: Api, root: Path, what: str) -> None:
    path = spoil(shutil.copytree(root / "pirate", root / f"bad {what}"), what)
    expected = api.chat("arr")
    load = api.request("/v1/load_lora_adapter", lora_name="bad", lora_path=str(path))
    good = [api.request("/v1/chat/completions", model="arr", **CHAT) for _ in range(3)]
    reply, *others = api.together(load, *good)
    assert reply.status_code == 400
    assert BAD[what][0] in reply.json()["error"]["message"]
    assert [each.json()["choices"][0]["message"]["content"] for each in others] == [expected] * 3
    assert "bad" not in api.models()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lora_name", "x" * 100_000),
        ("lora_name", "../x"),
        ("lora_name", "x\n"),
        ("lora_name", "x\0"),
        ("lora_path", "\0"),
        ("lora_path", "x" * 100_000),
    ],
)
def test_names_and_paths_are_checked(api: Api, root: Path, field: str, value: str) -> None:
    body = {"lora_name": "checked", "lora_path": str(root / "pirate")} | {field: value}
    reply = api.post("/v1/load_lora_adapter", **body)
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert len(message) < 1000
    assert str(root.parent) not in message.replace(body["lora_path"], "")
