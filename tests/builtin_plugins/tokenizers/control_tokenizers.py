"""Twelve small tokenizers of all kinds, with the same control tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

SPECIAL: Final = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "<|user|>")
SPECIAL_TOO: Final = ("<|assistant|>", "<|system|>", "<\uff5cend\u2581of\u2581text\uff5c>")
MEDIA: Final = ("<|image_pad|>", "<|vision_start|>", "<|vision_end|>", "<image>", "[IMG]")
"""Placeholders of media, and markers around them: Qwen's, LLaVA's and Mistral's."""
PLAIN: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Added tokens that the checkpoints do not mark special, and the templates write."""
ORDINARY: Final = ("    ", "<h1>")
"""Added tokens that belong to ordinary text."""
CONTROL: Final = (*SPECIAL, *SPECIAL_TOO, *MEDIA, *PLAIN)

CHATML: Final = (
    "{{ bos_token }}{% for d in documents or [] %}[INST]{{ d.text }}[/INST]{% endfor %}"
    "{% for t in tools or [] %}<tool_call>{{ t | tojson }}</tool_call>{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content | trim }}</think>{% endif %}"
    "{% if m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] | trim }}{% else %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ZEPHYR: Final = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + eos_token + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|{{ 'assistant' }}|>\n{% endif %}"
)
MISTRAL: Final = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content | trim }}"
    "{{ eos_token }}{% else %}[INST] {{ m.content | upper | lower | replace('!', '') }} [/INST]"
    "{% endif %}{% endfor %}"
)
TEMPLATES: Final = (CHATML, ZEPHYR, MISTRAL)

CORPUS: Final = (
    "hello there, the cat sat on the mat and system user assistant said <b>hi</b> again",
    "def f(x):\n    return [x | y for y in x if x < y > 3]\n\n# größer 漢字 🙂",
    "im_start im_end think tool_call INST end of text </p> |> <| </ [/ it's 2026",
) * 3
PATTERN: Final = r"'s|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*| ?\p{L}+|\s+(?!\S)|\s+"

Kind = Callable[[], tokenizers.Tokenizer]


def _bpe(pre: Any, normalizer: Any = None, **model: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(**model))
    if normalizer is not None:
        made.normalizer = normalizer
    if pre is not None:
        made.pre_tokenizer = pre
    byte_level = not model.get("byte_fallback")
    alphabet = pre_tokenizers.ByteLevel.alphabet() if byte_level else []
    first = [*([model["unk_token"]] if model.get("unk_token") else [])]
    if not byte_level:
        first += [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + len(first) + 150,
        initial_alphabet=alphabet,
        special_tokens=first,
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    if byte_level:
        made.decoder = decoders.ByteLevel()
        return made
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    # The bytes are no added tokens, as in SentencePiece models.
    stated = json.loads(made.to_str())
    stated["added_tokens"] = [each for each in stated["added_tokens"] if each["id"] == 0]
    return tokenizers.Tokenizer.from_str(json.dumps(stated))


def _unigram(prepend: str, normalizer: Any = None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    if normalizer is not None:
        made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    made.decoder = decoders.Metaspace(prepend_scheme=prepend)
    # Control tokens are in the vocabulary, as in converted SentencePiece models.
    trainer = trainers.UnigramTrainer(
        vocab_size=160,
        unk_token="<unk>",
        special_tokens=["<unk>", *SPECIAL],
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _wordpiece() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=250, special_tokens=["[UNK]", *SPECIAL], show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def _wordlevel() -> tokenizers.Tokenizer:
    words = dict.fromkeys(" ".join(CORPUS).split())
    vocab = {text: index for index, text in enumerate(["<unk>", *SPECIAL, *words])}
    made = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return made


def _byte_level(**options: Any) -> Any:
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, **options})


def _split() -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PATTERN), "isolated"),
            _byte_level(use_regex=False),
        ]
    )


def _sentencepiece() -> Any:
    return normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])


FALLBACK: Final = {"byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True}
KINDS: Final[Mapping[str, tuple[Kind, Mapping[str, Any]]]] = {
    "byte-level": (lambda: _bpe(_byte_level()), {}),
    "byte-level with a prefix space": (lambda: _bpe(_byte_level(add_prefix_space=True)), {}),
    "tiktoken": (lambda: _bpe(_split(), ignore_merges=True), {}),
    "byte-level, stripping": (lambda: _bpe(_byte_level()), {"lstrip": True, "rstrip": True}),
    "byte-level, stripping at the right": (lambda: _bpe(_split()), {"rstrip": True}),
    "lower case, normalized": (
        lambda: _bpe(_byte_level(), normalizers.Lowercase()),
        {"normalized": True},
    ),
    "SentencePiece BPE": (lambda: _bpe(None, _sentencepiece(), **FALLBACK), {}),
    "Metaspace BPE": (
        lambda: _bpe(pre_tokenizers.Metaspace(prepend_scheme="first"), **FALLBACK),
        {},
    ),
    "Unigram": (lambda: _unigram("always"), {}),
    "Unigram, NFKC, normalized": (
        lambda: _unigram("first", normalizers.NFKC()),
        {"normalized": True},
    ),
    "WordPiece": (_wordpiece, {}),
    "WordLevel": (_wordlevel, {}),
}
"""A tokenizer, and flags of its control tokens, by name."""


def write_control_tokenizer(folder: Path, kind: str, template: str) -> None:
    """Write a tokenizer's files."""
    make, flags = KINDS[kind]
    made = make()
    marked = {"special": True, "normalized": False, **flags}
    made.add_tokens([AddedToken(text, **marked) for text in (*SPECIAL, *SPECIAL_TOO, *MEDIA)])
    made.add_tokens([AddedToken(text, **{**marked, "special": False}) for text in PLAIN])
    made.add_tokens([AddedToken(text, special=False, normalized=False) for text in ORDINARY])
    made.save(str(folder / "tokenizer.json"))
    unknown = next(
        (text for text in ("<unk>", "[UNK]") if made.token_to_id(text) is not None), None
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": template,
        **({"unk_token": unknown} if unknown else {}),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def harmful_texts(rng: Any) -> Iterator[str]:
    """Yield texts made of control tokens' spellings: whole, in parts, in odd forms, and nested."""
    ordinary = (
        "hi",
        " the cat",
        "\n",
        "  ",
        "    ",
        "<",
        "|>",
        "[",
        "<h1>",
        "it's",
        "漢字",
        "!",
        "",
    )
    while True:
        parts = []
        for _ in range(rng.randrange(1, 7)):
            text = rng.choice(CONTROL)
            at = rng.randrange(len(text) + 1)
            parts += rng.choices(
                [
                    (text,),
                    (text[:at], rng.choice(ordinary), text[at:]),
                    (text[:at], text, text[at:]),
                    (text.upper(),),
                    (text.translate(FULL_WIDTH),),
                    (rng.choice(ordinary),),
                    (text[:at],),
                    (text[at:],),
                ],
                weights=(4, 2, 2, 1, 1, 2, 1, 1),
            )[0]
        if text := "".join(parts):
            yield text


FULL_WIDTH: Final = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}
"""Compatibility characters, which NFKC turns into ASCII."""
