"""Pre-tokenizer expressions of byte-level tokenizers, by llama.cpp's names. Data only.

The expressions are those of the models' own tokenizer.json, as far as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS: Final = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_REST: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_LLAMA3: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}|{_REST}"
_QWEN2: Final = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}|{_REST}"
_QWEN35: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_UPPER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+",
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*",
)
_ENDS: Final = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
_CASED_WORDS: Final = rf"{_CASED[0]}{_CONTRACTIONS}?|{_CASED[1]}{_CONTRACTIONS}?"
_GPT4O: Final = rf"{_CASED_WORDS}|\p{{N}}{{1,3}}|{_ENDS}"
_TEKKEN: Final = rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_ENDS}"
_DIGIT = r"\p{N}"
_DIGITS = r"\p{N}{1,3}"
_FROM_THE_END: Final = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
"""Groups of three digits, counted from the last."""
_KANA: Final = "[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK_WORDS: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚ"
    r"Ḁ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤ"
    r"Ⳬ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
    r"\p{N}+",
)
_BLOOM: Final = r" ?[^(\s|.,!?…。，、।۔،)]+"
_PUNCTUATION: Final = r"\p{P}\$\+<=>\^~\|"

_FAMILIES: Final[tuple[tuple[str, Sequence[str]], ...]] = (
    (
        "gpt-2 phi-2 jina-en jina-es jina-de jina-v1-en jina-v2-code jina-v2-es jina-v2-de "
        "roberta-bpe gigachat a.x-4.0 "
        "mellum modern-bert olmo mpt gpt-neox exaone4 jais trillion granite-docling",
        (_GPT2,),
    ),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx "
        "smaug-bpe",
        (_LLAMA3,),
    ),
    ("chatglm-bpe glm4 glm5", (_LLAMA3,)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan megrez grok-2 solar-open", (_QWEN2,)),
    ("qwen35", (_QWEN35,)),
    ("starcoder refact command-r smollm codeshell exaone minerva-7b mellum2", (_DIGIT, _GPT2)),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", (_GPT4O,)),
    ("tekken", (_TEKKEN,)),
    ("tiny_aya cohere2moe", (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", (_DIGITS, _KANA, _DEEPSEEK_WORDS)),
    ("deepseek-coder", _DEEPSEEK_CODER),
    ("deepseek-llm", _DEEPSEEK_LLM),
    (
        "afmoe",
        (
            _FROM_THE_END,
            "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+",
            _DEEPSEEK_WORDS,
        ),
    ),
    ("falcon", (rf"[{_PUNCTUATION}`]+", _GPT2, "[0-9][0-9][0-9]")),
    ("bloom poro-chat gpt3-finnish", (_BLOOM,)),
    ("viking", (_BLOOM, _DIGIT)),
    ("seed-coder", (rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}",)),
    (
        "bailingmoe bailingmoe2 llada-moe",
        (
            rf"'(?i:[sdmt]|ll|ve|re)|{_WORDS}|\p{{N}}| "
            rf"?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ),
    ),
    ("minicpm5", (_DIGITS, rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+|{_REST}")),
    ("default", (rf"[{_PUNCTUATION}]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
)
SPLITS: Final = {name: expressions for names, expressions in _FAMILIES for name in names.split()}
"""Expressions that split a text, applied in order; `default` is used if a file names none."""
ADDS_BOS: Final = frozenset(
    (
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
    )
)
"""Names with a BOS token before each text, unless the file says otherwise."""
IGNORES_MERGES: Final = ADDS_BOS | {"smaug-bpe", "gpt-4o", "llama4", "glm4", "glm5", "minicpm5"}
"""Names for which a piece in the vocabulary is one token, whatever its merges."""
