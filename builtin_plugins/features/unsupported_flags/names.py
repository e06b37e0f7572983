"""Names of vLLM's backends, formats and methods that no builtin provides, and what each needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from core.api import hookimpl

_GPU_ATTENTION: Final = (
    "an attention kernel for GPUs that is not part of this version; `triton` is the one for GPUs"
)
_MLA: Final = (
    "a kernel of latent attention that is not part of this version; leave the choice to the "
    "platform, which serves latent attention"
)
_SPARSE: Final = (
    "a kernel of sparse attention, which is not part of this version: contexts up to the model's "
    "index_topk are served densely"
)
_KV_FORMAT: Final = "a kernel for a KV cache format that is not part of this version"
_STREAMED: Final = (
    "a loader of weights that is not part of this version; safetensors files are mapped, and read "
    "from the hub or a folder"
)
_ONLINE: Final = (
    "rounding of weights to a format that is not served at load time; `int8` and `int4` are"
)
_NEEDS_KERNEL: Final = "a checkpoint format that is not part of this version"
_MTP: Final = (
    "multi-token prediction of a model that is not served here; `mtp` is for those that are"
)
_TRANSFER: Final = "a KV connector that is not part of this version"
_PLUGIN: Final = (
    "an entry of the distribution {}, which is not installed (plugins/{} of the source)"
)


def _plugin(name: str) -> str:
    return _PLUGIN.format(name, name)


def _each(kind: str, names: str, text: str) -> Iterable[tuple[str, str]]:
    return ((f"{kind}:{name}", text) for name in names.split())


MISSING_NAMES: Final[Mapping[str, str]] = dict(
    [
        *_each(
            "attention_backends",
            "B12X CUTLASS_MSA FLASH_ATTN_DIFFKV FLEX_ATTENTION HPC_ATTN ROCM_AITER_FA "
            "ROCM_AITER_UNIFIED_ATTN ROCM_ATTN ROCM_SEGMENTED_ATTN TRITON_ATTN_DIFFKV "
            "TRITON_FLASHINFER TRITON_FLASH_ATTN TRITON_MSA",
            _GPU_ATTENTION,
        ),
        *_each(
            "attention_backends",
            "AMX_MLA CPU_MLA CUTLASS_MLA FLASHINFER_MLA FLASHMLA FLASH_ATTN_MLA ROCM_AITER_MLA "
            "ROCM_AITER_TRITON_MLA TOKENSPEED_MLA TRITON_MLA",
            _MLA,
        ),
        *_each(
            "attention_backends",
            "FLASHINFER_MLA_SPARSE FLASHINFER_MLA_SPARSE_DSV4 FLASHINFER_MLA_SPARSE_DSV41 "
            "FLASHINFER_MLA_SPARSE_SM120 FLASHINFER_MLA_SPARSE_SM90 FLASHMLA_MEGA_ATTN_DSV41 "
            "FLASHMLA_SPARSE FLASHMLA_SPARSE_DSV4 FLASHMLA_SPARSE_DSV41 FLASH_ATTN_MLA_SPARSE "
            "FLASH_ATTN_MLA_SPARSE_FA4 MINIMAX_M3_SPARSE ROCM_AITER_MLA_SPARSE "
            "ROCM_FLASHMLA_SPARSE_DSV4 ROCM_FLASHMLA_SPARSE_DSV41 STEP5_DSA XPU_MLA_SPARSE",
            _SPARSE,
        ),
        *_each("attention_backends", "ROCM_OCTAVE TURBOQUANT ULTRAQUANT", _KV_FORMAT),
        *_each(
            "attention_backends",
            "CUSTOM NO_ATTENTION",
            "no backend: a plugin registers one of its own (`engine plugins new NAME --kind "
            "attention_backends`)",
        ),
        *_each("attention_backends", "FLASH_ATTN", _plugin("engine-flash-attn")),
        *_each("attention_backends", "FLASHINFER", _plugin("engine-flashinfer")),
        *_each(
            "attention_backends",
            "CPU_ATTN TORCH_SDPA TRITON_ATTN",
            "vLLM's name of a backend of another device; `auto` selects the one of this device",
        ),
        *_each(
            "weight_loaders",
            "fastsafetensors instanttensor modelexpress runai_streamer runai_streamer_sharded "
            "tensorizer",
            _STREAMED,
        ),
        *_each(
            "weight_loaders",
            "npcache pt",
            "for pickled weights, which are never read; convert the checkpoint to safetensors",
        ),
        *_each("weight_loaders", "hf", "`auto` here: it reads a folder or the hub"),
        *_each(
            "weight_loaders",
            "ipc_cache",
            "for a daemon that holds weights in GPU memory, which is not part of this version",
        ),
        *_each(
            "weight_loaders",
            "sharded_state",
            "for checkpoints split by rank, which are not part of this version; each rank reads "
            "its part of a plain checkpoint",
        ),
        *_each("weight_loaders", "gguf", _plugin("engine-gguf")),
        *_each(
            "quant_methods",
            "fp8_per_block fp8_per_channel fp8_per_tensor int8_per_channel_weight_only mxfp8 "
            "nvfp4_per_token online",
            _ONLINE,
        ),
        *_each(
            "quant_methods",
            "deepseek_v4_fp8 humming modelopt_mixed modelopt_mxfp8",
            _NEEDS_KERNEL,
        ),
        *_each("quant_methods", "gpt_oss_mxfp4", "`mxfp4` here"),
        *_each("quant_methods", "auto_awq", "`awq` here"),
        *_each("quant_methods", "auto_gptq", "`gptq` here"),
        *_each("quant_methods", "gguf", _plugin("engine-gguf")),
        *_each(
            "speculators",
            "bailing_hybrid_mtp bailing_hybrid_v3_mtp dots3_note_mtp exaone4_5_mtp exaone_moe_mtp "
            "gemma4_mtp glm4_moe_lite_mtp glm5_next_mtp glm_ocr_mtp hy_v3_mtp hy_v4_mtp "
            "inkling_mtp kimi_k3_mtp mimo_v2_mtp minimax_m3_mtp nemotron_h_mtp qwen3_5_mtp "
            "qwen4_exp_mtp step3p5_mtp step5_mtp",
            _MTP,
        ),
        *_each(
            "speculators",
            "dflash dspark",
            "a draft model that proposes a block at once, which is not part of this version; "
            "`eagle3` and `draft_model` are",
        ),
        *_each(
            "speculators",
            "custom_class",
            "a plugin here: `engine plugins new NAME --kind speculators`",
        ),
        *_each(
            "speculators",
            "extract_hidden_states",
            "no speculator: hidden states are returned by pooling (`--runner pooling`)",
        ),
        *_each("speculators", "ngram_gpu", "`ngram` here, which runs next to the device"),
        *_each(
            "kv_connectors",
            "DecodeBenchConnector ECCPUConnector ECExampleConnector ECMooncakeConnector "
            "ExampleHiddenStatesConnector FlexKVConnectorV1 HF3FSKVConnector HiSparseConnector "
            "LMCacheMPConnector MoRIIOConnector MooncakeStoreConnector",
            _TRANSFER,
        ),
        *_each(
            "kv_connectors",
            "SimpleCPUOffloadConnector",
            "`offload` here (vLLM's OffloadingConnector)",
        ),
        *_each("kv_connectors", "NixlConnector NixlPullConnector", _plugin("engine-nixl")),
        *_each(
            "kv_connectors",
            "NixlPushConnector",
            "not served: blocks are read by the engine that needs them (NixlConnector)",
        ),
        *_each("kv_connectors", "MooncakeConnector", _plugin("engine-mooncake")),
        *_each("kv_connectors", "LMCacheConnectorV1", _plugin("engine-lmcache")),
        *_each(
            "tokenizers",
            "alpamayo2_super cohere deepseek_v32 deepseek_v4 inkling kimi_k3 mistral",
            "not needed: `hf` reads the model's tokenizer.json and its chat template; models "
            "without them need a plugin (`engine plugins new NAME --kind tokenizers`)",
        ),
        *_each("executors", "ray", _plugin("engine-ray")),
        *_each("launchers", "ray", _plugin("engine-ray")),
        *_each(
            "executors",
            "external_launcher",
            "for engines on more than one machine, which are not part of this version; `mp` runs "
            "the ranks of one machine",
        ),
    ]
)
"""What is missing, by `kind:name`."""


@hookimpl
def engine_missing_entries() -> Mapping[str, str]:
    """Return the table."""
    return MISSING_NAMES
