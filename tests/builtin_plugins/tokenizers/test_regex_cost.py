"""Regular expressions of published tokenizers are accepted, those with exponential work are not."""

from __future__ import annotations

import pytest

from builtin_plugins.tokenizers.hf.regex_cost import CostlyRegexError, check_regex

WORD = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
PUBLISHED = {
    "gpt-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama-3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
    r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "gpt-4o": rf"[^\r\n\p{{L}}\p{{N}}]?{WORD}*[\p{{Ll}}\p{{M}}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{WORD}+[\p{{Ll}}\p{{M}}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "kimi": r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}",
    "command-r": r"\d{1,3}(?=(?:\d{3})*\b)",
    "deepseek": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "deepseek cjk": "[一-龥\u3040-ゟ゠-ヿ]+",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "clip": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "spaces": " {2,}",
    "after a newline": r"(?<=\n)[ \t]+",
    "possessive": r"\p{N}++|\s++$",
    "a brace": r"a{|b{x}|[{}]",
}
COSTLY = {
    "nested stars": "(a+)+$",
    "nested star of a group": "(?:(?:a*)b?)*c",
    "alternatives in a star": "(a|a)*b",
    "alternatives with lengths": "(a|aa)+b",
    "optional part in a star": "(a?a)*b",
    "optional parts": "(a?){30}a{30}",
    "counted alternatives": "(a|a){40}b",
    "nested counts": "((a{1,9}){1,9}){1,9}b",
    "four loops": "a*a*a*a*b",
    "lookahead in a star": "(?:(?=a+)a)*b",
    "backreference": r"(a*)\1",
    "named backreference": r"(?<x>a*)\k<x>",
    "recursion": r"(?<x>a\g<x>?b)",
    "absent operator": "(?~(a+)+)",
    "comments hide brackets": "(?x)a # (\n)",
    "stacked quantifiers": "a+*b",
    "open class": "[a",
    "open group": "(a",
    "closed group": "a)",
    "backslash": "a\\",
    "deep": "(" * 100 + "a" + ")" * 100,
    "long": "a" * 200_000,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_expression_is_accepted(name: str) -> None:
    check_regex(PUBLISHED[name])


@pytest.mark.parametrize("name", COSTLY)
def test_costly_expression_is_rejected(name: str) -> None:
    with pytest.raises(CostlyRegexError):
        check_regex(COSTLY[name])
