"""The compared engines: drivers, environments, models, and which are installed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
KV_GB: Final = 3
"""KV cache size of each engine: all requests of every task fit without shared prefixes."""
CHECKPOINT: Final = "qwen3-0.6b"
OURS: Final = "engine"
EVERY_TASK: Final = "abcdep"
ONE_STREAM: Final = "dp"
"""Tasks of engines that are slow at batches."""
HELD: Final[Mapping[str, Mapping[str, str]]] = {
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ATEN_CPU_CAPABILITY": "avx512"},
}
"""Environment variables that hold oneDNN and torch to an instruction set."""


@dataclass(frozen=True, slots=True)
class Contender:
    """An engine with a model at a number of bits per weight."""

    name: str
    driver: str
    model: str
    """File or folder in the model folder."""
    venv: str | None = None
    """Folder in the peers folder; None for the environment of this process."""
    bits: int = 16
    tasks: str = EVERY_TASK
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """`{venv}` is replaced by the environment folder, `{cores}` by the usable cores."""
    held_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options where it is held to an instruction set."""
    compiled: bool = False
    """Whether its instructions are chosen when it is compiled."""

    @property
    def ours(self) -> bool:
        """Return whether it is this engine."""
        return self.name.startswith(OURS)


@dataclass(frozen=True, slots=True)
class Setup:
    """Folders of models and peers, number of threads, and instruction set."""

    models: Path
    peers: Path
    threads: int
    isa: str | None = None
    """Instruction set of `HELD` that all engines are held to; None for the best one."""

    @classmethod
    def add_arguments(
        cls, parser: argparse.ArgumentParser, *, models_required: bool = True
    ) -> None:
        """Add its command line arguments."""
        add = parser.add_argument
        add(
            "--models",
            type=_absolute,
            required=models_required,
            help=f"folder with {CHECKPOINT} and what is made of it",
        )
        add(
            "--peers",
            type=_absolute,
            default=_absolute("peers"),
            help="folder with the peers' environments",
        )
        add("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each engine")

    def python(self, contender: Contender) -> Path:
        """Return the Python interpreter of a contender's driver."""
        if contender.venv is None:
            return Path(sys.executable)
        venv = f"{contender.venv}-{self.isa}" if contender.compiled and self.isa else contender.venv
        return self.peers / venv / "bin" / "python"

    def missing(self, contender: Contender) -> str | None:
        """Return what is missing to run a contender; None for nothing."""
        needed = self.python(contender), self.models / contender.model
        return next((f"no {path}" for path in needed if not path.exists()), None)

    def command(self, contender: Contender) -> list[str]:
        """Return the command of a contender's driver."""
        driver = HERE / "drivers" / contender.driver
        model = self.models / contender.model
        options = dict(contender.options)
        if self.isa:
            options |= contender.held_options
            options |= {"isa": self.isa} if contender.ours else {}
        flags = ["--threads", str(self.threads), "--options", json.dumps(options)]
        return [str(self.python(contender)), str(driver), "--model", str(model), *flags]

    def env(self, contender: Contender) -> dict[str, str]:
        """Return the additional environment variables of a contender."""
        cores = ",".join(map(str, range(self.threads)))
        venv = self.peers / (contender.venv or "")
        threads = {} if contender.venv == "vllm" else {"OMP_NUM_THREADS": str(self.threads)}
        given = {
            name: value.format(venv=venv, cores=cores) for name, value in contender.env.items()
        }
        return {"HF_HUB_OFFLINE": "1", **threads, **given, **self.held()}

    def held(self) -> Mapping[str, str]:
        """Return the environment variables that hold libraries to the instruction set."""
        return HELD[self.isa] if self.isa else {}


def _absolute(text: str) -> Path:
    """Return an absolute path."""
    return Path(text).absolute()


GGUF_KINDS: Final = {"Q8_0": 8, "Q4_0": 4, "Q4_K_M": 4}
"""Bits per weight of the GGUF files that this engine and llama.cpp both load."""
VLLM_ENV: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_KVCACHE_SPACE": str(KV_GB),
    "VLLM_CPU_OMP_THREADS_BIND": "{cores}",  # its default uses one of two cores
    "LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4:{venv}/lib/libiomp5.so",
}


def contenders(engine_options: Mapping[int, Mapping[str, Any]]) -> tuple[Contender, ...]:
    """Return all contenders; this engine with options for the number of bits."""
    ours = {"max_model_len": 2048, "kv_cache_memory_bytes": KV_GB << 30}
    return (
        *(
            Contender(
                OURS if bits == 16 else f"{OURS} int{bits}",
                "run_engine.py",
                CHECKPOINT,
                bits=bits,
                options={**ours, **options},
            )
            for bits, options in engine_options.items()
        ),
        *(
            Contender(
                f"{OURS} {kind}", "run_engine.py", f"{kind.lower()}.gguf", bits=bits, options=ours
            )
            for kind, bits in GGUF_KINDS.items()
        ),
        Contender(
            "vLLM", "run_vllm.py", CHECKPOINT, "vllm", options={"max_model_len": 2048}, env=VLLM_ENV
        ),
        *(
            Contender(
                "OpenVINO" if bits == 16 else f"OpenVINO int{bits}",
                "run_openvino.py",
                f"openvino-{bits}",
                "ov",
                bits,
                options={"cache_gb": KV_GB, "precision": "bf16"},
                # It takes the processor for one with bfloat16 and VNNI, and then finds none.
                held_options={
                    "precision": "f32",
                    "settings": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
                },
            )
            for bits in (16, 8, 4)
        ),
        Contender("transformers", "run_transformers.py", CHECKPOINT, tasks=ONE_STREAM),
        llama_cpp("llama.cpp", "bf16.gguf"),
        *(
            llama_cpp(f"llama.cpp {kind}", f"{kind.lower()}.gguf", bits)
            for kind, bits in GGUF_KINDS.items()
        ),
    )


def llama_cpp(name: str, model: str, bits: int = 16) -> Contender:
    """Return llama.cpp with a model."""
    return Contender(
        name, "run_llama_cpp.py", model, "llama", compiled=True, bits=bits, tasks=ONE_STREAM
    )


def choose(
    everyone: Iterable[Contender], bits: Iterable[int], only: Iterable[str]
) -> list[Contender]:
    """Return contenders of some bits with names that begin with one of `only` (empty: all)."""
    names = tuple(name.lower() for name in only)
    widths = set(bits)
    return [
        one
        for one in everyone
        if one.bits in widths and (not names or one.name.lower().startswith(names))
    ]
