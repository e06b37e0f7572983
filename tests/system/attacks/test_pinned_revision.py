"""`--revision` applies to every file of a model: a fake hub records the requests.

Each revision has different contents, so that a file of another revision is detected.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest

REPOSITORY: Final = "example/model"
PINNED: Final = "1" * 40
COMMITS: Final = {"main": "2" * 40, "pinned": PINNED, PINNED: PINNED}
"""Commits by revision."""
READ: Final = """
import sys
from builtin_plugins.model_sources.huggingface.source import find
from builtin_plugins.tokenizers.hf.loading import load_tokenizer
from core.config import EngineConfig
from core.config.sections import ModelConfig

name, revision, tokenizer = sys.argv[1:]
config = EngineConfig(ModelConfig(name, revision=revision, tokenizer=tokenizer or None))
load_tokenizer(find(name, config), config)
"""
LOAD: Final = """
import sys
from core import LLM, SamplingParams
name, revision, tokenizer = sys.argv[1:]
settings = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 22, "num_threads": 1}
with LLM(name, revision=revision, tokenizer=tokenizer or None, **settings) as llm:
    llm.generate([1, 2, 3], SamplingParams(max_tokens=2), use_tqdm=False)
"""
DEMO: Final = Path(__file__).parents[3] / "builtin_plugins" / "model_sources" / "demo" / "model"


@dataclass
class Hub:
    """A fake hub with one repository; records every requested path."""

    files: dict[str, bytes]
    url: str = ""
    requested: list[str] = field(default_factory=list)

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body like the real hub."""
        self.requested.append(path)
        info = re.fullmatch(rf"/api/models/{REPOSITORY}/revision/([^?]+)(\?.*)?", path)
        tree = re.fullmatch(rf"/api/models/{REPOSITORY}/tree/([^?/]+)/?(\?.*)?", path)
        if info and info[1] in COMMITS:
            listed = [{"rfilename": name} for name in self.files]
            body = {
                "id": REPOSITORY,
                "modelId": REPOSITORY,
                "sha": COMMITS[info[1]],
                "siblings": listed,
            }
            return 200, {"content-type": "application/json"}, json.dumps(body).encode()
        if tree and tree[1] in COMMITS:
            entries: list[dict[str, Any]] = [
                {"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in self.files.items()
            ]
            return 200, {"content-type": "application/json"}, json.dumps(entries).encode()
        found = re.fullmatch(rf"/{REPOSITORY}/resolve/([^/]+)/(.+)", path)
        if found and found[1] in COMMITS and found[2] in self.files:
            commit = COMMITS[found[1]]
            data = self.files[found[2]] if commit == PINNED else b"of another revision"
            return 200, {"etag": f'"{_etag(data)}"', "x-repo-commit": commit}, data
        return 404, {"x-error-code": "EntryNotFound"}, b""


def _etag(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


@contextmanager
def hub_with(folder: Path) -> Iterator[Hub]:
    """Serve a folder's files as a repository's pinned revision."""
    hub = Hub({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("code", "revision", "tokenizer"),
    [
        (READ, "pinned", REPOSITORY),
        (READ, PINNED, ""),
        pytest.param(LOAD, "pinned", REPOSITORY, marks=pytest.mark.slow),
    ],
    ids=["name", "commit", "whole engine"],
)
def test_all_files_come_from_pinned_revision(
    tmp_path: Path, code: str, revision: str, tokenizer: str
) -> None:
    with hub_with(DEMO) as hub:
        environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("HF_", "HUGGINGFACE_"))
            },
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(tmp_path / "cache"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }
        done = subprocess.run(
            [sys.executable, "-c", code, REPOSITORY, revision, tokenizer],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    revisions = {
        found
        for path in hub.requested
        for found in re.findall(r"/(?:revision|tree|resolve)/([^/?]+)", path)
    }
    assert revisions <= {revision, PINNED}
    fetched = {path.rpartition("/")[2] for path in hub.requested if f"/resolve/{PINNED}/" in path}
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= fetched
    assert all(path.startswith(("/api/models/", f"/{REPOSITORY}/")) for path in hub.requested)
