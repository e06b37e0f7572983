"""Adapters from a bucket: the model name `s3/NAME` stands for BUCKET/NAME."""

import asyncio
import re
import subprocess
from pathlib import Path

from core import LoRARequest
from core.api import Option, hookimpl

FILES = ("adapter_config.json", "adapter_model.safetensors")


@hookimpl
def engine_options():
    return [
        Option(
            "lora_bucket", str | None, None, "Bucket and prefix of adapters: s3://bucket/prefix."
        )
    ]


@hookimpl(optionalhook=True)  # a hook of the plugin lora
def engine_lora_resolvers(config):
    bucket = config.options["lora_bucket"]
    return [Bucket(bucket)] if bucket else []


class Bucket:
    """Copies an adapter's files with the AWS command line, once."""

    name = "bucket"

    def __init__(self, bucket):
        self._bucket = bucket
        self._cache = Path.home() / ".cache" / "adapters"

    async def resolve_lora(self, base_model_name, lora_name):
        found = re.fullmatch(r"s3/([A-Za-z0-9_-]+)", lora_name)  # client input
        if found is None:
            return None
        folder = self._cache / found[1]
        await asyncio.to_thread(self._copy, found[1], folder)
        return LoRARequest(lora_name, 1, str(folder))

    def _copy(self, name, folder):
        for file in FILES:
            source = f"{self._bucket}/{name}/{file}"
            subprocess.run(["aws", "s3", "cp", source, folder / file], check=True)
