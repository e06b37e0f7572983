"""GPU platforms, and CUDA graph capture and replay on a fake device."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from builtin_plugins.executors.mp.devices import device_environment
from builtin_plugins.platforms.cuda import platform as gpu
from builtin_plugins.platforms.cuda.cuda_graphs import (
    MAX_CAPTURED_TOKENS,
    CudaGraphModel,
    capture_sizes,
)
from builtin_plugins.platforms.cuda.stream import DeviceStream
from core import LLM, SamplingParams
from core.api.models import ForwardBatch
from core.config import EngineConfig
from core.errors import ConfigError
from core.testing.checkpoints import ARCHITECTURES, make_checkpoint
from core.testing.tiny_encoder_decoders import ENCODER_DECODERS
from tests.builtin_plugins.platforms.fake_gpu import GIB, NO_CPU, FakeGpu, FakeRecorder

FAKE = str(Path(__file__).with_name("fake_gpu_plugin.py"))
PLUGINS = [FAKE, *NO_CPU]


def config_of(**scheduler: int) -> EngineConfig:
    config = EngineConfig()
    return replace(config, scheduler=replace(config.scheduler, **scheduler))


def test_probing_gpu_platform_initialises_no_device() -> None:
    script = (
        "import sys, torch\n"
        "from builtin_plugins.platforms.cuda.platform import CudaPlatform, RocmPlatform, "
        "XpuPlatform\n"
        "print([made().is_available() for made in (CudaPlatform, RocmPlatform, XpuPlatform)])\n"
        "assert not torch.cuda.is_initialized() and 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


WITHOUT_SERVING = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        absent = {
            "fastapi", "starlette", "uvicorn", "pydantic", "zmq",
            "xgrammar", "llguidance", "prometheus_client",
        }
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from core import LLM, SamplingParams
test_folder, folder, *plugins = sys.argv[1:]
sys.path.insert(0, test_folder)
sizes = {"max_num_seqs": 2, "max_model_len": 64, "num_gpu_blocks_override": 8}
options = {"dtype": "float32", "device": "fake", "plugins": plugins, "log_level": "error"}
with LLM(folder, **options, **sizes) as llm:
    sampling = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    print(len(llm.generate("hello", sampling, use_tqdm=False)[0].outputs[0].token_ids))
"""


def test_gpu_model_path_imports_no_server_package(tmp_path: Path) -> None:
    folder = make_checkpoint("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=1)
    command = [
        sys.executable,
        "-c",
        WITHOUT_SERVING,
        str(Path(__file__).parent),
        str(folder),
        *PLUGINS,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["4"], done.stderr


@pytest.mark.parametrize("made", [gpu.CudaPlatform, gpu.RocmPlatform, gpu.XpuPlatform])
def test_gpu_platform_requires_matching_torch_build(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = SimpleNamespace(device_count=lambda: 1)
    monkeypatch.setattr(made, "_module", found)
    for hip in (None, "6.4"):
        monkeypatch.setattr(torch.version, "hip", hip)
        assert made().is_available() == (
            made is gpu.XpuPlatform or (made is gpu.RocmPlatform) == (hip is not None)
        )
    found.device_count = lambda: 0
    assert not made().is_available()


def test_bfloat16_falls_back_to_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.CudaPlatform, "_module", SimpleNamespace(device_count=lambda: 1))
    for capability, picked in (((7, 5), "float16"), ((9, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda own=capability: own)
        assert gpu.CudaPlatform().pick_dtype("bfloat16") == picked
        assert gpu.CudaPlatform().pick_dtype("float32") == "float32"
        facts = gpu.CudaPlatform().facts()
        assert (facts["capability"], facts["float8"]) == (
            10 * capability[0] + capability[1],
            capability == (9, 0),
        )


def test_kv_memory_is_the_rest_of_gpu_memory_utilization() -> None:
    config = config_of(max_num_batched_tokens=1024, max_num_seqs=16)
    steps = 1024 * gpu.BYTES_PER_TOKEN + 16 * gpu.BYTES_PER_ROW
    before = FakeGpu()
    after = FakeGpu()
    after.start(config)
    assert after.kv_memory_bytes(config, 100 << 20) == int(0.9 * 2 * GIB) - GIB - steps
    assert before.kv_memory_bytes(config, 100 << 20) == int(0.9 * 2 * GIB) - GIB - steps - (
        100 << 20
    )
    assert before.free_memory_bytes(config) == GIB - int(2 * GIB * (1 - 0.9))
    requested = replace(config, cache=replace(config.cache, kv_cache_memory_bytes=12345))
    assert before.kv_memory_bytes(requested, 1) == 12345


def test_too_low_gpu_memory_utilization_is_rejected() -> None:
    config = config_of(max_num_batched_tokens=8192, max_num_seqs=16)
    with pytest.raises(
        ConfigError,
        match=r"--gpu-memory-utilization 0\.9 of 2\.00 GiB .* 0\.50 GiB of it by weights",
    ):
        FakeGpu().kv_memory_bytes(config, GIB // 2)


def split_over(**sizes: int) -> EngineConfig:
    config = EngineConfig()
    return replace(config, parallel=replace(config.parallel, **sizes))


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
@pytest.mark.parametrize("made", [gpu.RocmPlatform, gpu.XpuPlatform])
def test_ranks_need_collectives(made: Any, kind: str) -> None:
    two = split_over(**{f"{kind}_parallel_size": 2})
    FakeGpu().start(two)
    message = rf"--{kind}-parallel-size: got 2; expected 1 on (rocm|xpu)"
    with pytest.raises(ConfigError, match=message):
        made().start(two)


def test_each_rank_gets_a_gpu_of_its_own() -> None:
    two = split_over(tensor_parallel_size=2)
    found = [device_environment(two, rank, ["4", "7", "8"]) for rank in range(2)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in found] == ["4", "7"]
    assert device_environment(two, 1, []) == {}
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size, .*: got 2 ranks; .* 1 GPUs"):
        device_environment(two, 0, ["4"])
    assert device_environment(EngineConfig(), 0, ["4", "7"]) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "tensor", "pipeline", "settings"),
    [
        ("LlamaForCausalLM", 2, 1, {}),
        ("LlamaForCausalLM", 1, 2, {}),
        ("LlamaForCausalLM", 2, 2, {}),
        ("Qwen2MoeForCausalLM", 2, 2, {"enable_expert_parallel": True}),
    ],
)
def test_captured_ranks_give_the_tokens_of_one(
    architecture: str, tensor: int, pipeline: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Ranks of the fake device communicate by Gloo; replays repeat reductions, and no transfers."""
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    given = (
        prompts_of(architecture, (6, 2)),
        SamplingParams(temperature=0.7, seed=3, max_tokens=8, ignore_eos=True),
    )
    whole = tokens_of(folder, *given, device="cpu", enforce_eager=True)
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline, **settings}
    assert tokens_of(folder, *given, device="fake", plugins=PLUGINS, **sizes) == whole


def test_cpu_instruction_set_is_rejected_on_a_gpu() -> None:
    config = replace(EngineConfig(), options={"isa": "avx2"})
    with pytest.raises(ConfigError, match=r"--isa: got avx2; expected none"):
        FakeGpu().start(config)


def test_capture_sizes_end_at_first_that_holds_all_rows() -> None:
    assert capture_sizes(1) == (1,)
    assert capture_sizes(3) == (1, 2, 4)
    assert capture_sizes(20) == (1, 2, 4, 8, 16, 24)
    assert capture_sizes(256)[-3:] == (240, 248, 256)
    assert capture_sizes(4000)[-1] == MAX_CAPTURED_TOKENS


def test_launch_exception_is_raised_by_result() -> None:
    events: list[str] = []
    event = SimpleNamespace(
        record=lambda: events.append("record"), synchronize=lambda: events.append("wait")
    )
    stream = DeviceStream(SimpleNamespace(Event=lambda: event))
    launched = stream.launch(lambda: 7)
    assert events == ["record"]
    assert (launched.result(), events) == (7, ["record", "wait"])
    failed = stream.launch(lambda: [][1])
    with pytest.raises(IndexError):
        failed.result()


class Plan:
    """A plan of one number."""

    def __init__(self, number: float) -> None:
        self.number = torch.tensor(number)

    def to_static(self, max_len: int) -> Plan:
        assert max_len == 64
        return Plan(float(self.number))

    to_static_for_any = to_static

    def copy_from(self, other: Plan) -> None:
        self.number.copy_(other.number)


def batch_of(size: int, number: float, **changes: Any) -> ForwardBatch:
    plan = Plan(number)
    ids = torch.arange(size)
    made = ForwardBatch(
        ids, ids + 1, [plan, plan], [0] * size, [0] * size, [1] * size, [1] * size, ids[None]
    )
    return replace(made, **changes)


def replayed(
    model: Callable[[ForwardBatch], torch.Tensor], *, mixed: bool = False
) -> tuple[CudaGraphModel, FakeRecorder]:
    recorder: Any = FakeRecorder()
    return CudaGraphModel(model, (2, 4), 64, recorder, mixed=mixed), recorder


def result_of(batch: ForwardBatch) -> torch.Tensor:
    return batch.input_ids * 10.0 + batch.positions * batch.attention[1].number


def test_graph_replays_with_later_steps() -> None:
    model, recorder = replayed(result_of)
    for number in range(5):
        batch = batch_of(4, float(number))
        assert torch.equal(model(batch), result_of(batch))
    assert recorder.replays == 4  # but the first, which was plain


@pytest.mark.parametrize(
    "changes",
    [{"counts": [3, 1]}, {"embeddings": torch.ones(4, 2)}, {"adapted": True}, {"branched": True}],
)
def test_uncaptured_steps_are_plain_calls(changes: dict[str, Any]) -> None:
    model, recorder = replayed(result_of)
    for _ in range(3):
        model(batch_of(4, 1.0, **changes))
        model(batch_of(3, 1.0))
    assert recorder.replays == 0


def test_graphs_are_captured_per_adapter_set() -> None:
    model, recorder = replayed(result_of)
    for adapters in (0, 3, 5, 0, 5, 3):
        for number in range(3):
            batch = batch_of(4, float(number), adapter_set=adapters)
            assert torch.equal(model(batch), result_of(batch))
        assert len({kind[1] for kind in model._recorded} - {0}) <= 1
    assert recorder.replays == 2 + 2 + 2 + 3 + 3 + 3


def test_mixed_steps_have_their_own_graphs() -> None:
    model, recorder = replayed(result_of, mixed=True)
    for number, counts in enumerate(([3, 1], [1] * 4, [4], [1, 3], [1] * 4, [2, 2], [1] * 4)):
        batch = batch_of(4, float(number), counts=counts, rows=[0] * len(counts))
        assert torch.equal(model(batch), result_of(batch))
    assert recorder.replays == (4 - 1) + (3 - 1), (
        "one kind of step is for rows that decode, the other for all others"
    )


def test_model_that_reads_host_values_is_not_captured() -> None:
    def reads(batch: ForwardBatch) -> torch.Tensor:
        return result_of(batch) + len(batch.starts)

    model, recorder = replayed(reads)
    for number in range(3):
        batch = batch_of(2, float(number))
        assert torch.equal(model(batch), reads(batch))
    assert recorder.replays == 0


def prompts_of(architecture: str, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Return prompts of these lengths, with encoder inputs if needed."""
    prompts: list[dict[str, Any]] = [
        {"prompt_token_ids": [(7 * i + 13 * n) % 200 for i in range(n)]} for n in lengths
    ]
    if architecture == "WhisperForConditionalGeneration":
        shape = 10, 40  # of the tiny model's spectrograms
        prompts = [
            {"input_features": torch.randn(shape, generator=torch.Generator().manual_seed(n))}
            for n in lengths
        ]
    if architecture in ENCODER_DECODERS:
        return [{"encoder_prompt": prompt} for prompt in prompts]
    return prompts


def tokens_of(
    folder: Path, prompts: Any, sampling: SamplingParams, **settings: Any
) -> list[list[int]]:
    sizes = {"max_num_seqs": 3, "max_model_len": 64, "num_gpu_blocks_override": 40}
    with LLM(str(folder), dtype="float32", skip_tokenizer_init=True, **sizes, **settings) as llm:
        return [
            list(out.outputs[0].token_ids)
            for out in llm.generate(prompts, sampling, use_tqdm=False)
        ]


@pytest.mark.parametrize(
    ("architecture", "changes", "replays"),
    [
        ("LlamaForCausalLM", {"num_hidden_layers": 1}, True),
        ("MistralForCausalLM", {"num_hidden_layers": 1, "sliding_window": 4}, True),
        ("DeepseekV2ForCausalLM", {"num_hidden_layers": 1}, True),
        ("MixtralForCausalLM", {"num_hidden_layers": 1}, True),
        ("Mamba2ForCausalLM", {"num_hidden_layers": 1}, True),
        ("BartForConditionalGeneration", {"encoder_layers": 1, "decoder_layers": 1}, True),
    ],
    ids=["all tokens", "a window", "latents", "experts", "a state", "an encoder"],
)
def test_gpu_tokens_of_every_layer_kind_equal_cpu(
    architecture: str, changes: dict[str, Any], replays: bool, tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1, **changes)
    given = (
        prompts_of(architecture, (6, 2)),
        SamplingParams(temperature=0.7, seed=3, max_tokens=4, ignore_eos=True),
    )
    FakeGpu.recorder = FakeRecorder()
    assert tokens_of(folder, *given, device="fake", plugins=PLUGINS) == tokens_of(
        folder, *given, device="cpu", enforce_eager=True
    )
    assert (FakeGpu.recorder.replays > 0) == replays


@pytest.mark.slow
@pytest.mark.parametrize("architecture", sorted({**ARCHITECTURES, **ENCODER_DECODERS}))
def test_every_family_has_equal_tokens_eager_and_captured(
    architecture: str, tmp_path: Path
) -> None:
    folder = make_checkpoint(architecture, tmp_path / "model", seed=1)
    sampling = SamplingParams(temperature=0.7, seed=3, top_k=20, max_tokens=5, ignore_eos=True)
    given = prompts_of(architecture, (17, 3)), sampling
    replayed = tokens_of(folder, *given, device="fake", plugins=PLUGINS)
    FakeGpu.recorder = FakeRecorder()
    assert tokens_of(folder, *given, device="fake", plugins=PLUGINS, enforce_eager=True) == replayed
    assert FakeGpu.recorder.replays == 0
    assert tokens_of(folder, *given, device="cpu") == replayed
