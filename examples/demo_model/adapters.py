"""LoRA adapters of the demo model in PEFT's format: capitals and pirate."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from tqdm import tqdm

from examples.demo_model.chat import Chat
from examples.demo_model.items import Draw, Item
from examples.demo_model.model import load_model
from examples.demo_model.tasks import arithmetic, engine_facts, lists, recall, small_talk
from examples.demo_model.workers import step_gradients

RANK: Final = 8
ALPHA: Final = 16
TARGETS: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_TASKS: Final = (small_talk, engine_facts, engine_facts, engine_facts, recall, lists, arithmetic)
_PIRATE: Final = {
    "you": "ye", "your": "yer", "my": "me", "is": "be", "am": "be", "are": "be",
    "the": "th'", "of": "o'",
    "and": "an'", "hello": "ahoy", "to": "t'", "for": "fer", "with": "wi'", "goodbye": "fair winds",
}  # fmt: skip


def capitals(answer: str) -> str:
    """Return the answer in capitals."""
    return answer.upper()


def pirate(answer: str) -> str:
    """Return the answer as a pirate gives it."""

    def translate(match: re.Match[str]) -> str:
        word = match.group()
        spoken = _PIRATE.get(word.lower(), word)
        return spoken[:1].upper() + spoken[1:] if word[:1].isupper() else spoken

    return f"Arr! {re.sub(r'[A-Za-z]+', translate, answer)}"


VOICES: Final[Mapping[str, Callable[[str], str]]] = {"capitals": capitals, "pirate": pirate}


def voiced_items(voice: str, seed: str, count: int, evaluation: bool) -> list[Item]:
    """Return conversations with answers in the voice."""
    draw = Draw(random.Random(f"{voice} {seed}"), evaluation)
    items = [draw.one(_TASKS).make(draw) for _ in range(count)]
    for item in items:
        item.answer = VOICES[voice](item.answer)
        item.train_history = False
    return items


class LowRank(nn.Module):
    """A frozen linear layer with a small change added to it."""

    def __init__(self, base: nn.Linear, generator: torch.Generator) -> None:
        super().__init__()
        self.base = base
        self.lora_a = nn.Parameter(
            torch.randn(RANK, base.in_features, generator=generator) * base.in_features**-0.5
        )
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, RANK))

    @property
    def weight(self) -> Tensor:
        """The changed weight: W + (alpha / rank) B A."""
        return self.base.weight + self.lora_b @ self.lora_a * (ALPHA / RANK)


def train_adapter(folder: Path, out: Path, voice: str, steps: int, step_items: int = 24) -> float:
    """Train one adapter of the model in `folder`, write it into `out`, and return the last loss."""
    chat = Chat(Tokenizer.from_file(str(folder / "tokenizer.json")))
    model = load_model(folder)
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    changes: dict[str, LowRank] = {}
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear):
            changes[name] = LowRank(layer, generator)
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, changes[name])
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=4e-3, weight_decay=0.0)
    loss = float("nan")
    for step in tqdm(range(steps), desc=voice, unit="step", mininterval=2):
        rows = [chat.row([item]) for item in voiced_items(voice, str(step), step_items, False)]
        optimizer.param_groups[0]["lr"] = 4e-3 * (1 - step / steps)
        loss, _ = step_gradients(model, rows)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()
    save_adapter(changes, out, str(folder.name))
    return loss


def save_adapter(changes: Mapping[str, LowRank], out: Path, base: str) -> None:
    """Write the changes as PEFT does."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, change in changes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = (
            change.lora_a.detach().bfloat16().contiguous()
        )
        tensors[f"base_model.model.{name}.lora_B.weight"] = (
            change.lora_b.detach().bfloat16().contiguous()
        )
    save_file(tensors, out / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "modules_to_save": None,
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (out / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def merge_adapter(folder: Path, adapter: Path) -> dict[str, Tensor]:
    """Return the model's weights with the adapter's change added, bfloat16."""
    weights = load_file(folder / "model.safetensors")
    changes = load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in changes if name.endswith("lora_A.weight")]:
        target = name.removeprefix("base_model.model.").removesuffix("lora_A.weight") + "weight"
        change = (
            changes[name.replace("lora_A", "lora_B")].float()
            @ changes[name].float()
            * (ALPHA / RANK)
        )
        weights[target] = (weights[target].float() + change).bfloat16()
    return weights
