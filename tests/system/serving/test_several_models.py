"""Several models on one port: three of them, room for two, 200 mixed requests, one that fails."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from builtin_plugins.routes.anthropic.routes import AnthropicRoutes
from builtin_plugins.routes.openai.routes import OpenAIRoutes
from builtin_plugins.routes.tokens.tokenize import TokenizeRoutes
from builtin_plugins.servers.http.server import HttpServer
from core import LLM, AsyncLLM
from core.testing.checkpoints import make_checkpoint
from tests.builtin_plugins.commands.test_model_pool import lru_loads
from tests.served import COLD, COMMAND
from tests.timeouts import TIMEOUT_S

NAMES: Final = ("red", "green", "blue")
Request = tuple[str, dict[str, Any]]


def mixed_request(name: str, number: int) -> Request:
    """Return one of the protocols' requests; each has a prompt of its own."""
    text = f"request {number} of {name}"
    base = {"model": name, "max_tokens": 8, "temperature": 0}
    messages = [{"role": "user", "content": text}]
    return (
        ("/v1/completions", {**base, "prompt": text, "ignore_eos": True}),
        ("/v1/completions", {**base, "prompt": text, "stream": True}),
        ("/v1/chat/completions", {**base, "messages": messages}),
        ("/v1/messages", {**base, "messages": messages}),
        ("/tokenize", {"model": name, "prompt": text}),
    )[number % 5]


async def answer(client: httpx.AsyncClient, request: Request) -> Any:
    """Return what an answer says, without ids and times."""
    path, body = request
    reply = await client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    if body.get("stream"):
        blocks = reply.text.split("\n\n")[:-2]
        chunks = [json.loads(block.removeprefix("data: ")) for block in blocks]
        assert {chunk["model"] for chunk in chunks} == {body["model"]}
        return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
    found = reply.json()
    if path != "/tokenize":
        assert found["model"] == body["model"]
    return found.get("content") or found.get("choices") or found.get("tokens")


def expected_answers(folder: Path, name: str, requests: list[Request]) -> list[Any]:
    """Return the answers of a server with this model alone, in this process."""
    engine = AsyncLLM(
        str(folder / name),
        served_model_name=[name],
        disable_frontend_multiprocessing=True,
        max_model_len=256,
        kv_cache_memory_bytes=1 << 24,
        num_threads=1,
        dtype="float32",
    )
    config = engine.config
    groups = [kind(engine, config) for kind in (OpenAIRoutes, AnthropicRoutes, TokenizeRoutes)]
    app = HttpServer(engine, config, groups).app

    async def send_all() -> list[Any]:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://one", timeout=TIMEOUT_S
        ) as client:
            return [await answer(client, request) for request in requests]

    try:
        return asyncio.run(send_all())
    finally:
        engine.shutdown()


class Served:
    """A server of several models."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", timeout=TIMEOUT_S)

    def loads(self) -> dict[str, int]:
        """Return how often each model was loaded."""
        return {name: each["loads"] for name, each in self.get("/health").json()["models"].items()}

    def children(self) -> dict[int, str]:
        """Return the living children of the parent, with their names."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                head, _, tail = path.read_text().rpartition(")")
            except OSError:
                continue
            if int(tail.split()[1]) == self.process.pid and tail.split()[0] != "Z":
                found[int(path.parent.name)] = head.partition("(")[2]
        return found


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[Served]:
    """Serve on a free port; nothing may be left of a server that has ended."""
    (folder / "tmp").mkdir()
    command = [sys.executable, "-P", "-c", COMMAND, "serve", *flags, *COLD, "--port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "tmp")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("Serving "), (folder / "log").read_text()
        server = Served(process, line.split()[-1])
        yield server
        below = server.children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
        assert list((folder / "tmp").glob("engine-*")) == []
    finally:
        if sys.exc_info()[0] is not None:
            print((folder / "log").read_text())
        process.kill()
        process.wait()
        process.stdout.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < until_s:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("the condition was not met in time")


def is_ready(server: Served) -> bool:
    try:
        return server.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_three_models_with_room_for_two_answer_mixed_requests(tmp_path: Path) -> None:
    lines = []
    for seed, name in enumerate(NAMES):
        make_checkpoint("LlamaForCausalLM", tmp_path / name, seed=seed)
        lines.append(f"{name}: {tmp_path / name}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    lines.append(f"broken:\n  model: {tmp_path / 'empty'}\n  max_model_len: 128")
    file = tmp_path / "models.yaml"
    file.write_text("\n".join(lines))

    rng = random.Random(7)
    one_by_one: list[str] = []
    while len(one_by_one) < 140:
        one_by_one += [rng.choice(NAMES)] * rng.randrange(10, 30)
    one_by_one = one_by_one[:140]
    at_once = [rng.choice(NAMES) for _ in range(60)]
    requests = [mixed_request(name, i) for i, name in enumerate([*one_by_one, *at_once])]
    expected: dict[int, Any] = {}
    for name in NAMES:
        places = [i for i, (_, body) in enumerate(requests) if body["model"] == name]
        found = expected_answers(tmp_path, name, [requests[i] for i in places])
        expected |= dict(zip(places, found, strict=True))

    async def send_all(server: Served) -> None:
        async with httpx.AsyncClient(
            base_url=server.url, timeout=TIMEOUT_S, limits=httpx.Limits(max_connections=100)
        ) as client:
            for i, request in enumerate(requests[:140]):
                assert await answer(client, request) == expected[i], request
            loads = await asyncio.to_thread(server.loads)
            assert sum(loads.values()) == lru_loads(one_by_one, 2)
            body = {"model": "broken", "prompt": "x"}
            failing = asyncio.ensure_future(client.post("/v1/completions", json=body))
            found = await asyncio.gather(*(answer(client, request) for request in requests[140:]))
            assert found == [expected[i] for i in range(140, 200)]
            reply = await failing
            assert reply.status_code == 503, reply.text
            assert int(reply.headers["retry-after"]) > 0
            assert "'broken' cannot be loaded: " in reply.json()["error"]["message"]
            reply = await client.post("/v1/completions", json={**body, "model": "grey"})
            assert reply.status_code == 404
            assert reply.json()["error"]["code"] == "model_not_found"

    flags = ("--max-model-len", "256", "--kv-cache-memory-bytes", "16M", "--dtype", "float32")
    limits = ("--models-file", str(file), "--max-loaded-models", "2")
    with serving(tmp_path, *flags, *limits) as server:
        asyncio.run(send_all(server))
        loads = server.loads()
        broken = loads.pop("broken")
        assert broken == 1
        assert sum(loads.values()) <= lru_loads([*one_by_one, "broken", *at_once], 2) - broken
        states = {card["id"]: card["status"] for card in server.get("/v1/models").json()["data"]}
        loaded = [name for name, state in states.items() if state["value"] == "loaded"]
        assert 1 <= len(loaded) <= 2
        assert states["broken"]["value"] == "failed"
        page = server.get("/metrics").text
        for name in loaded:
            assert f'engine_num_requests_running{{engine="0",model_name="{name}"}} 0.0' in page

        before = server.children()
        os.kill(next(pid for pid, name in before.items() if name == "engine-api"), signal.SIGKILL)
        wait_for(lambda: is_ready(server))
        body = {"model": loaded[0], "prompt": "again", "max_tokens": 4}
        reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S)
        assert reply.status_code == 200
        models = {pid for pid, name in before.items() if not name.startswith("engine-")}
        assert models <= set(server.children()), "the models' processes were not preserved"


@pytest.mark.slow
def test_pooling_models_answer_next_to_a_generating_one(tmp_path: Path) -> None:
    kinds = {
        "writer": ("LlamaForCausalLM", {}),
        "vectors": ("BertModel", {}),
        "ranker": ("BertForSequenceClassification", {"num_labels": 1}),
    }
    folders = {}
    for name, (architecture, fields) in kinds.items():
        folders[name] = make_checkpoint(architecture, tmp_path / name, seed=1, **fields)
    texts = ["in on the", "he then on", "an other at the, then"]
    query = "the other in the then"
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_threads": 1}
    with LLM(str(folders["vectors"]), **settings) as llm:
        vectors = [out.outputs.embedding for out in llm.embed(texts, use_tqdm=False)]
        tokens = llm.get_tokenizer().encode(query)  # type: ignore[union-attr]
    with LLM(str(folders["ranker"]), **settings) as llm:
        scores = [out.outputs.score for out in llm.score(query, texts, use_tqdm=False)]

    file = tmp_path / "models.yaml"
    file.write_text("".join(f"{name}: {folder}\n" for name, folder in folders.items()))
    flags = ("--models-file", str(file), "--max-loaded-models", "2", "--dtype", "float32")
    with serving(tmp_path, *flags, "--max-model-len", "64", "--num-threads", "1") as server:

        def post(path: str, model: str, **fields: Any) -> httpx.Response:
            body = {"model": model, **fields}
            return httpx.post(f"{server.url}{path}", json=body, timeout=TIMEOUT_S)

        def states() -> dict[str, str]:
            cards = server.get("/v1/models").json()["data"]
            return {card["id"]: card["status"]["value"] for card in cards}

        reply = post("/v1/completions", "writer", prompt=query, max_tokens=4, keep_alive="9h")
        assert (reply.status_code, reply.json()["model"]) == (200, "writer")
        assert reply.headers["x-ignored-fields"] == "keep_alive"
        reply = post("/v1/embeddings", "vectors", input=texts)
        assert reply.json()["model"] == "vectors"
        for each, expected in zip(reply.json()["data"], vectors, strict=True):
            assert each["embedding"] == pytest.approx(expected, abs=1e-5)
        assert states() == {"writer": "loaded", "vectors": "loaded", "ranker": "unloaded"}

        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            results = post(path, "ranker", query=query, documents=texts).json()["results"]
            found = {each["index"]: each["relevance_score"] for each in results}
            assert [found[i] for i in range(3)] == pytest.approx(scores, abs=1e-5)
        reply = post("/score", "ranker", text_1=query, text_2=texts)
        assert [each["score"] for each in reply.json()["data"]] == pytest.approx(scores, abs=1e-5)
        assert states() == {"writer": "unloaded", "vectors": "loaded", "ranker": "loaded"}

        reply = post("/tokenize", "vectors", prompt=query)
        assert reply.json()["tokens"] == tokens
        reply = post("/detokenize", "vectors", tokens=tokens)
        assert query in reply.json()["prompt"]
        reply = post("/pooling", "vectors", input=texts[0])
        assert reply.status_code == 200, reply.text
        reply = post("/v2/embed", "vectors", texts=texts, embedding_types=["float"])
        assert reply.status_code == 200, reply.text
        assert server.loads() == {"writer": 1, "vectors": 1, "ranker": 1}

        for path, fields in (
            ("/v1/completions", {"prompt": query}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": query}]}),
        ):
            assert post(path, "vectors", **fields).status_code in (400, 404)
        for path, fields in (
            ("/v1/embeddings", {"input": query}),
            ("/rerank", {"query": query, "documents": texts}),
        ):
            assert post(path, "writer", **fields).status_code in (400, 404)
        assert states() == {"writer": "loaded", "vectors": "loaded", "ranker": "unloaded"}
