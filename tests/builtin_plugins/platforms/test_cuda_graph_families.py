"""Every architecture family on the GPU path with graphs: tokens equal eager mode and the CPU.

Computes in plain torch here, so all families run always; Triton's kernels have their own tests.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from core.model_spec.kv import IndexKeys, RecurrentState, SlidingRows
from core.testing.checkpoints import ARCHITECTURES, make_checkpoint
from core.testing.tiny_encoder_decoders import ENCODER_DECODERS
from tests.builtin_plugins.platforms.fake_gpu import NO_CPU, FakeGpu
from tests.builtin_plugins.platforms.test_gpu_platform import FAKE, prompts_of

STILL = str(Path(__file__).with_name("fixed_shape_attention.py"))
ON_A_DEVICE: dict[str, Any] = {
    "device": "fake",
    "plugins": [FAKE, STILL, *NO_CPU, "no:ops_triton"],
    "attention_backend": "still",
}
LENGTHS = (5, 3, 2, 6, 4)
TOKENS = (8, 3, 6, 5, 7)
"""Rows end one after the other, and others enter: steps are padded, and prompts are read while
others decode.
"""


def tokens_of(folder: Path, architecture: str, **settings: Any) -> list[list[int]]:
    # Indexers are not loaded for 19 tokens; this attention has no sparse one.
    sizes = {"max_num_seqs": 3, "max_model_len": 19, "num_gpu_blocks_override": 40}
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in TOKENS]
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **sizes, **settings) as llm:
        found = llm.generate(prompts_of(architecture, LENGTHS), params, use_tqdm=False)
    return [list(out.outputs[0].token_ids) for out in found]


def _are_rows(spec: Any) -> bool:
    """Return whether the layer reads its cache as plain rows (DeepSeek V4, Inkling)."""
    if isinstance(spec, IndexKeys):
        return spec.rate > 1 or not spec.top_k
    return isinstance(spec, SlidingRows)


EVERY = sorted({**ARCHITECTURES, **ENCODER_DECODERS})


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(name, marks=() if index % 5 == 0 else pytest.mark.slow)
        for index, name in enumerate(EVERY)
    ],
)
def test_captured_tokens_of_every_family_equal_eager(architecture: str, tmp_path: Path) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    replayed = tokens_of(folder, architecture, **ON_A_DEVICE)
    recorder = FakeGpu.recorder
    made = FakeGpu.made
    assert made is not None
    if any(
        _are_rows(layer.spec) for layer in made._model.kv_layers
    ):  # read by sequence, on the host
        assert recorder.replays == 0
        assert tokens_of(folder, architecture, device="cpu", enforce_eager=True) == replayed
        return
    assert recorder.replays >= 5
    decoding_only = any(isinstance(layer.spec, RecurrentState) for layer in made._model.kv_layers)
    decoding_only |= architecture in ENCODER_DECODERS  # new requests have encoder inputs
    assert {decodes for _, _, decodes in made._recorded} == (
        {True} if decoding_only else {True, False}
    )
    assert tokens_of(folder, architecture, **ON_A_DEVICE, enforce_eager=True) == replayed
    assert FakeGpu.recorder is recorder, "nothing is recorded"
    assert tokens_of(folder, architecture, device="cpu", enforce_eager=True) == replayed
