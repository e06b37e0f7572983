"""Time to the first token with a cached image, and gaps of text streams next to image requests.

1. In turns: a prompt with an image that was sent before, and one of as many text tokens. Both begin
   with new text, so neither has a prefix hit.
2. In turns: text streams alone, next to text requests, and next to requests of as many tokens with
   new images.

The model is a random LLaVA of 30 M parameters with 256 tokens an image, or `--image-tokens`, unless
`--model` names one.

Run: python benchmarks/neighbours/images.py [--rounds 20] [-- FLAGS OF engine serve]
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import math
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
from PIL import Image
from serving import TIMEOUT_S, Served, served

PATCH = 14
"""Side of the patch of a token, in pixels."""
PREFIX = 24
"""Characters of new text before each image."""


def make_model(folder: Path, num_tokens: int) -> None:
    """Write a random LLaVA with a tokenizer of bytes."""
    import transformers
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(t, special=True) for t in ("<|end|>", "<image>")])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "image_size": side_of(num_tokens),
        "patch_size": PATCH,
    }
    text = {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 8192,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    token = tokenizer.convert_tokens_to_ids("<image>")
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=token, image_seq_length=num_tokens
    )
    transformers.LlavaForConditionalGeneration(config).save_pretrained(folder)
    side = side_of(num_tokens)
    size = {"height": side, "width": side}
    transformers.LlavaProcessor(
        image_processor=transformers.CLIPImageProcessorPil(size=size, crop_size=size),
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template="{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}"
        "{% else %}{% for p in m['content'] %}{% if p['type'] == 'image' %}<image>"
        "{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}",
    ).save_pretrained(folder)


def side_of(num_tokens: int) -> int:
    """Return the side of an image in pixels."""
    return PATCH * math.isqrt(num_tokens)


def picture(seed: int, num_tokens: int) -> str:
    """Return a data URL of an image of noise."""
    side = side_of(num_tokens)
    pixels = np.random.RandomState(seed).randint(0, 255, (side, side, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG")
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


class Client:
    """Requests to the server; each begins with new text."""

    def __init__(self, server: Served, image_tokens: int) -> None:
        self.image_tokens = image_tokens
        self._client = openai.OpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
        )
        self._count = 0
        self._lock = threading.Lock()

    def times(self, url: str | None, max_tokens: int) -> list[float]:
        """Return when the request began and when each of its tokens came, in seconds."""
        with self._lock:
            self._count += 1
            text = f"{self._count:0{PREFIX}d}"
        parts: list[Any] = [{"type": "text", "text": text}]
        if url is None:
            words = f"{self._count} some words " * self.image_tokens
            parts = [{"type": "text", "text": text + words[: self.image_tokens]}]
        else:
            parts.append({"type": "image_url", "image_url": {"url": url}})
        parts.append({"type": "text", "text": "what is it?"})
        found = [time.perf_counter()]
        stream = self._client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": parts}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for chunk in stream:
            if chunk.choices:
                found.append(time.perf_counter())
        return found

    def num_tokens(self, url: str | None) -> int:
        """Return the tokens of a prompt."""
        parts: Any = [{"type": "text", "text": "0" * PREFIX}]
        if url is None:
            parts = [{"type": "text", "text": "0" * (PREFIX + self.image_tokens)}]
        else:
            parts.append({"type": "image_url", "image_url": {"url": url}})
        parts.append({"type": "text", "text": "what is it?"})
        answer = self._client.chat.completions.create(
            model="", messages=[{"role": "user", "content": parts}], max_tokens=1
        )
        assert answer.usage is not None
        return answer.usage.prompt_tokens


def first_tokens(client: Client, rounds: int) -> None:
    """Print the time to the first token with a cached image, and with as many text tokens."""
    url = picture(0, client.image_tokens)
    print("prompt tokens", {"image": client.num_tokens(url), "text": client.num_tokens(None)})
    for each in (url, None):
        client.times(each, 1)
    pairs = []
    for index in range(rounds):
        order = (url, None) if index % 2 else (None, url)
        took = {}
        for each in order:
            began, first, *_ = client.times(each, 1)
            took[each is not None] = first - began
        pairs.append((took[True], took[False]))
    image = statistics.median(pair[0] for pair in pairs)
    text = statistics.median(pair[1] for pair in pairs)
    ratio = statistics.median(pair[0] / pair[1] for pair in pairs)
    print(
        f"first token: image {image * 1e3:.1f} ms, text {text * 1e3:.1f} ms, "
        f"median of ratios {ratio:.3f} ({rounds} pairs)"
    )


def gaps_next_to(client: Client, send: Callable[[int], None] | None, streams: int) -> list[float]:
    """Return the gaps between tokens of text streams while `send` is called in a loop."""
    gaps: list[float] = []
    done = threading.Event()

    def neighbour() -> None:
        number = 0
        while not done.is_set() and send is not None:
            send(number)
            number += 1

    def stream() -> None:
        times = client.times(None, 100)
        gaps.extend(b - a for a, b in pairwise(times[1:]))

    other = threading.Thread(target=neighbour)
    own = [threading.Thread(target=stream) for _ in range(streams)]
    for thread in (*own, other):
        thread.start()
    for thread in own:
        thread.join()
    done.set()
    other.join()
    return gaps


def neighbours(client: Client, rounds: int) -> None:
    """Print the gaps between tokens of text streams, alone and next to other requests."""
    seeds = iter(range(1, 1 << 30))

    def send_image(number: int) -> None:
        client.times(picture(next(seeds), client.image_tokens), 1)

    senders: dict[str, Callable[[int], None] | None] = {
        "alone": None,
        "next to texts": lambda number: client.times(None, 1) and None,
        "next to new images": send_image,
    }
    found: dict[str, list[float]] = {name: [] for name in senders}
    ratios = []
    for _ in range(rounds):
        p99 = {}
        for name, send in senders.items():
            gaps = gaps_next_to(client, send, 4)
            found[name] += gaps
            p99[name] = float(np.percentile(gaps, 99))
        ratios.append(p99["next to new images"] / p99["next to texts"])
    for name, gaps in found.items():
        p50, p99_of_all = np.percentile(gaps, (50, 99)) * 1e3
        print(f"gaps {name}: p50 {p50:.1f} ms, p99 {p99_of_all:.1f} ms ({len(gaps)} gaps)")
    print(
        f"p99 next to images / next to texts: median of {rounds} ratios "
        f"{statistics.median(ratios):.2f}"
    )


def main() -> None:
    """Run both parts."""
    own, _, flags = _split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--image-tokens", type=int, default=256, help="a square number")
    parser.add_argument("--model")
    args = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as folder:
        model = args.model
        if model is None:
            model = folder
            make_model(Path(folder), args.image_tokens)
        length = str(1024 + args.image_tokens)
        settings = ("--max-model-len", length, "--kv-cache-memory-bytes", "256M")
        with served(model, *settings, "--log-level", "error", *flags) as server:
            client = Client(server, args.image_tokens)
            first_tokens(client, args.rounds)
            neighbours(client, max(1, args.rounds // 4))
            metrics = httpx.get(f"{server.url}/metrics").text
            runs = [line for line in metrics.splitlines() if line.startswith("engine_mm_")]
            print(json.dumps(runs))


def _split(words: list[str]) -> tuple[list[str], str, list[str]]:
    at = words.index("--") if "--" in words else len(words)
    return words[:at], "--", words[at + 1 :]


if __name__ == "__main__":
    main()
