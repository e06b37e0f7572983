"""What transformers computes of a checkpoint, and whether the engine computes the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import torch
import transformers

from core import LLM, SamplingParams
from core.testing.tiny_encoder_decoders import ENCODER_DECODERS
from core.testing.tiny_encoders import POOLED

NUM_GENERATED: Final = 6
TOLERANCE: Final = 1e-3
"""Of log-probabilities and embeddings, and the least gap between the two best logits."""
LENGTHS: Final = (1, 23, 70)
"""Prompt lengths: one token, and above every drawn window."""
SHAPES: Final = ((70, 1), (3, 21), (33, 6))
"""Lengths of encoder and decoder prompts."""
NUM_DRAWS: Final = 20
"""Prompts to draw until one has no near tie."""
PARAMS: Final = SamplingParams(temperature=0, max_tokens=NUM_GENERATED, ignore_eos=True, logprobs=0)
ENGINE: Final[Mapping[str, Any]] = {
    "dtype": "float32",
    "max_model_len": 96,
    "num_threads": 1,
    "kv_cache_memory_bytes": 1 << 23,
    "log_level": "error",
}


class Comparison(Protocol):
    """Compares one kind of models."""

    def cases(self, folder: Path, architecture: str) -> list[Any]:
        """Return transformers' results, without those of near ties."""

    def difference(self, folder: Path, cases: Sequence[Any]) -> str:
        """Return the engine's first difference; empty if there is none."""


@dataclass(frozen=True)
class Generated:
    """A prompt, and transformers' greedy tokens with their log-probabilities."""

    prompt: Any
    tokens: list[int]
    logprobs: list[float]


class Causal:
    """Decoders: in chunks, then with a warm prefix cache."""

    def cases(self, folder: Path, architecture: str) -> list[Generated]:
        """Return the results of all lengths."""
        del architecture
        config = transformers.AutoConfig.from_pretrained(folder)
        kind = getattr(transformers, config.architectures[0], transformers.AutoModelForCausalLM)
        # Falcon's eager attention adds the slopes of ALiBi twice.
        attention = "sdpa" if config.model_type == "falcon" else "eager"
        model = _load(kind, folder, config=config, attn_implementation=attention)
        size = config.get_text_config().vocab_size
        found = [self._case(model, size, length) for length in LENGTHS]
        return [case for case in found if case is not None]

    @torch.inference_mode()
    def _case(self, model: Any, size: int, length: int) -> Generated | None:
        for seed in range(NUM_DRAWS):
            generator = torch.Generator().manual_seed(1000 * seed + length)
            prompt = torch.randint(0, size - 3, (length,), generator=generator).tolist()
            case = _generate(
                lambda tokens: model(torch.tensor([tokens]), use_cache=False), prompt, prompt
            )
            if case is not None:
                return case
        return None

    def difference(self, folder: Path, cases: Sequence[Generated]) -> str:
        """Compare tokens and log-probabilities."""
        settings = {**ENGINE, "max_num_batched_tokens": 16, "mamba_block_size": 16}
        stated = json.loads((folder / "config.json").read_text())
        if "vision_config" in stated or stated["model_type"] == "fuyu":
            settings["limit_mm_per_prompt"] = {"image": 0}  # there are no files of a processor
        with LLM(str(folder), **settings) as llm:
            for run in ("in chunks", "with a warm prefix cache"):
                found = _difference(llm, cases)
                if found:
                    return f"{run}, {found}"
        return ""


class EncoderDecoder:
    """Models with an encoder and a decoder."""

    def cases(self, folder: Path, architecture: str) -> list[Generated]:
        """Return the results of all shapes."""
        model = _load(getattr(transformers, architecture), folder, attn_implementation="eager")
        found = [self._case(model, *shape) for shape in SHAPES]
        return [case for case in found if case is not None]

    @torch.inference_mode()
    def _case(self, model: Any, read: int, text_out: int) -> Generated | None:
        config = model.config
        start = model.generation_config.decoder_start_token_id
        for seed in range(NUM_DRAWS):
            generator = torch.Generator().manual_seed(1000 * seed + read)
            if hasattr(config, "num_mel_bins"):
                shape = (config.num_mel_bins, 2 * config.max_source_positions)
                features = torch.randn(shape, generator=generator)
                inputs = {"input_features": features[None]}
                source: dict[str, Any] = {"input_features": features.numpy()}
            else:
                ids = torch.randint(3, 290, (read,), generator=generator)
                inputs = {"input_ids": ids[None]}
                source = {"prompt_token_ids": ids.tolist()}
            drawn = torch.randint(3, 290, (text_out - 1,), generator=generator).tolist()
            prompt = [start, *drawn]
            whole = {"encoder_prompt": source, "decoder_prompt": {"prompt_token_ids": prompt}}
            case = _generate(
                lambda tokens, inputs=inputs: model(
                    **inputs, decoder_input_ids=torch.tensor([tokens]), use_cache=False
                ),
                prompt,
                whole,
            )
            if case is not None:
                return case
        return None

    def difference(self, folder: Path, cases: Sequence[Generated]) -> str:
        """Compare tokens and log-probabilities."""
        with LLM(str(folder), **ENGINE) as llm:
            return _difference(llm, cases)


class Pooled:
    """Embeddings and classes."""

    @torch.inference_mode()
    def cases(self, folder: Path, architecture: str) -> list[tuple[list[int], torch.Tensor]]:
        """Return prompts with their pooled outputs."""
        model = _load(getattr(transformers, architecture), folder, attn_implementation="eager")
        generator = torch.Generator().manual_seed(0)
        size = model.config.vocab_size
        found = []
        for length in (3, 23, 70):
            ids = torch.randint(5, size - 3, (length,), generator=generator)[None]
            out = model(ids, attention_mask=torch.ones_like(ids), output_hidden_states=True)
            if "Classification" in architecture:
                pooled = out.logits[0].softmax(-1)
            else:
                hidden = out.hidden_states[-1] if "Masked" in architecture else out[0]
                pooled = torch.nn.functional.normalize(_pool(architecture, hidden[0]), dim=0)
            found.append((ids[0].tolist(), pooled))
        return found

    def difference(self, folder: Path, cases: Sequence[tuple[list[int], torch.Tensor]]) -> str:
        """Compare all elements."""
        with LLM(str(folder), **ENGINE) as llm:
            outputs = llm.encode([ids for ids, _ in cases], use_tqdm=False)
        for output, (ids, target) in zip(outputs, cases, strict=True):
            worst = float((output.outputs.data - target).abs().max())
            if not worst <= TOLERANCE:
                return f"prompt of {len(ids)}: outputs differ by {worst:.4f}"
        return ""


def comparison_of(architecture: str) -> Comparison:
    """Return how an architecture is compared."""
    if architecture in POOLED:
        return Pooled()
    return EncoderDecoder() if architecture in ENCODER_DECODERS else Causal()


def _load(kind: Any, folder: Path, **settings: Any) -> Any:
    """Return transformers' model; its grouped products of experts take aligned sizes only."""
    settings |= {"experts_implementation": "eager", "dtype": torch.float32}
    return kind.from_pretrained(folder, **settings).eval()


def _pool(architecture: str, hidden: torch.Tensor) -> torch.Tensor:
    if architecture in ("T5EncoderModel", "Gemma3TextModel"):
        return hidden.mean(0)
    return hidden[-1] if architecture.startswith(("Llama", "Qwen")) else hidden[0]


def _generate(run: Any, start: list[int], prompt: Any) -> Generated | None:
    """Return the greedy tokens after `start`; None at a near tie."""
    tokens = list(start)
    logprobs: list[float] = []
    for _ in range(NUM_GENERATED):
        scores = run(tokens).logits[0, -1].float()
        best = scores.topk(2).values
        if not best[0] - best[1] > TOLERANCE:
            return None
        tokens.append(int(scores.argmax()))
        logprobs.append(float(scores.log_softmax(-1)[tokens[-1]]))
    return Generated(prompt, tokens[len(start) :], logprobs)


def _difference(llm: LLM, cases: Sequence[Generated]) -> str:
    """Return the first difference of the engine's tokens and log-probabilities."""
    outputs = llm.generate([case.prompt for case in cases], PARAMS, use_tqdm=False)
    for index, (output, case) in enumerate(zip(outputs, cases, strict=True)):
        completion = output.outputs[0]
        if list(completion.token_ids) != case.tokens:
            return f"prompt {index}: tokens {list(completion.token_ids)}, not {case.tokens}"
        assert completion.logprobs is not None
        found = [
            position[token].logprob
            for position, token in zip(completion.logprobs, case.tokens, strict=True)
        ]
        worst = max(abs(a - b) for a, b in zip(found, case.logprobs, strict=True))
        if not worst <= TOLERANCE:
            return f"prompt {index}: log-probabilities differ by {worst:.4f}"
    return ""
