"""Checkpoints and builders shared by the tests of models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from core_kernels.library import load_library
from safetensors.torch import load_file

from core.config import EngineConfig
from core.config.sections import LoadConfig, ModelConfig
from core.model_spec.parallel import ParallelGroup, Pipeline
from core.models.layers.decoder import Decoder
from core.models.layers.loading import load_model
from core.plugin import load_plan, make_plan
from core.plugin.registry import Registry
from core.testing.checkpoints import make_checkpoint
from core.testing.one_sequence import OneSequenceAttention, plain_context, read_config
from core.testing.published.catalog import PUBLISHED, reference

torch.set_num_threads(1)

SEED = 1
"""Of the checkpoints that tests share."""
Load = Callable[..., Decoder]


@pytest.fixture(
    params=[
        "avx2",
        *(pytest.param(isa, marks=pytest.mark.slow) for isa in ("generic", "avx512")),
    ]
)
def forced_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Compute on an instruction set that few test machines would choose."""
    library = load_library()
    if library is None:
        pytest.skip("no C++ library on this machine")
    best = library.core_kernels_isa()
    if not library.core_kernels_use(request.param.encode()):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    library.core_kernels_use(best)


@pytest.fixture(scope="session")
def by_transformers() -> Callable[[Path], Any]:
    """Return a function from a checkpoint to transformers' model."""
    return _by_transformers


def _by_transformers(folder: Path) -> Any:
    architecture = read_config(folder).architectures[0]
    if architecture in PUBLISHED:
        return reference(architecture, SEED)
    config = transformers.AutoConfig.from_pretrained(folder)
    # transformers 5.23: Falcon's eager attention adds the slopes of positions twice, its fused one
    # once.
    attention = "sdpa" if config.model_type == "falcon" else "eager"
    # Its grouped products of experts take aligned sizes only.
    settings = {
        "attn_implementation": attention,
        "experts_implementation": "eager",
        "dtype": torch.float32,
    }
    kind: Any = getattr(transformers, config.architectures[0], transformers.AutoModelForCausalLM)
    return kind.from_pretrained(folder, config=config, **settings).eval()


@pytest.fixture(scope="session")
def registry() -> Registry:
    return load_plan(make_plan([]))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function from architecture to its tiny checkpoint, made once."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder_of(architecture: str) -> Path:
        folder = root / architecture
        return folder if folder.exists() else make_checkpoint(architecture, folder, seed=SEED)

    return folder_of


@pytest.fixture(scope="session")
def spec_of(registry: Registry) -> Callable[[str, Any], Any]:
    """Return a function that reads a config's spec."""
    known = {registered.entry.name: registered for registered in registry.entries("models")}

    def read(architecture: str, config: Any) -> Any:
        return registry.load(known[architecture])(config)

    return read


@pytest.fixture(scope="session")
def load(spec_of: Callable[[str, Any], Any]) -> Load:
    """Return a function that builds and loads the decoder of a checkpoint."""

    def build(
        architecture: str, folder: Path, dtype: torch.dtype = torch.float32, quant: Any = None
    ) -> Decoder:
        context = plain_context(dtype=dtype)
        context = context if quant is None else replace(context, quant=quant)
        decoder = Decoder(spec_of(architecture, read_config(folder)), context)
        decoder.load_weights(load_file(folder / "model.safetensors").items())
        return decoder

    return build


@pytest.fixture
def open_model(registry: Registry) -> Callable[..., Any]:
    """Return a function that finds and loads a model as a worker does."""

    def load(
        folder: Path,
        *,
        load_format: str = "auto",
        dtype: torch.dtype = torch.float32,
        pipeline: Pipeline | None = None,
        **model: Any,
    ) -> Any:
        config = EngineConfig(ModelConfig(str(folder), **model), LoadConfig(load_format))
        source = registry.find_model(str(folder), config)
        assert source is not None
        loaded, _ = load_model(
            config,
            source,
            registry,
            device="cpu",
            dtype=dtype,
            attention=OneSequenceAttention(),
            group=ParallelGroup(),
            pipeline=pipeline or Pipeline(),
        )
        return loaded

    return load
