"""Method `suffix` (suffix decoding): drafts the majority continuation of the longest match.

Matches are searched in the request's own text and in earlier outputs. The majority decides on the
next token, if it is frequent enough. Only its occurrences count for the following tokens.
Initial outputs may come from a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from builtin_plugins.speculators.checkpoints import find_checkpoint
from builtin_plugins.speculators.ngram import RequestIndexes, TokenIndex
from core.api import ConfigError

if TYPE_CHECKING:
    from builtin_plugins.speculators.contract import DraftRow, SpeculativeConfig
    from core.api import EngineConfig, Registry
    from core.api.execution import LoadedParts
    from core.api.models import ModelSource
    from core.model_spec.kv import LayerKV

MIN_MATCH: Final = 2
"""Shortest match, in tokens."""
OUTPUT_NGRAM_SIZES: Final = (MIN_MATCH, 5)
"""N-gram sizes of the indexes of earlier outputs, which are large."""
OWN_TEXT_BONUS: Final = 2
"""Tokens added to the match length of the request's own text, which tends to repeat itself."""
MAX_MATCHES: Final = 8
"""Matches that are counted; those of the own text first."""
FILE: Final = "outputs.safetensors"
END: Final = -1
"""Separator after each output."""


class Suffix:
    """Searches each request's own text, and the outputs of finished requests.

    Ranks see requests leave at different times and must draft the same, so with several ranks only
    the own text is searched.
    """

    is_lookup = True

    def __init__(
        self, config: EngineConfig, settings: SpeculativeConfig, registry: Registry
    ) -> None:
        self._max_depth = settings.suffix_decoding_max_tree_depth
        self._spec_factor = settings.suffix_decoding_max_spec_factor
        self._min_probability = settings.suffix_decoding_min_token_prob
        has_one_rank = config.parallel.tensor_parallel_size == 1
        self._max_outputs = 0
        if has_one_rank:
            self._max_outputs = settings.suffix_decoding_max_cached_requests
        self._indexes = RequestIndexes(MIN_MATCH)
        self._older = TokenIndex(*OUTPUT_NGRAM_SIZES)
        self._newer = TokenIndex(*OUTPUT_NGRAM_SIZES)
        """Outputs in two generations: when the newer one is full, the older one is dropped."""
        self._num_newer = 0
        self._initial = TokenIndex(*OUTPUT_NGRAM_SIZES)
        """Outputs of the file, which are equal on all ranks."""
        self._find_outputs = None
        if settings.model:
            self._find_outputs = partial(find_checkpoint, config, settings, registry)

    def loaded(self, parts: LoadedParts) -> Sequence[LayerKV]:
        """Load the outputs of `model`. Raises `ConfigError` for those of another model."""
        if self._find_outputs is not None:
            self._initial.extend(read_outputs(self._find_outputs(), parts.model.vocab_size))
        return ()

    def propose(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        """Return the draft of each row; empty without a match."""
        for row in rows:
            self._add_finished_output(row)
        return [self._draft(row) for row in rows]

    def _add_finished_output(self, row: DraftRow) -> None:
        """Index the output of the row's previous request, if it has left."""
        previous = self._indexes.previous_of(row)
        if previous is None or not self._max_outputs:
            return
        if 2 * self._num_newer >= self._max_outputs:
            self._older = self._newer
            self._newer = TokenIndex(*OUTPUT_NGRAM_SIZES)
            self._num_newer = 0
        owner, index = previous
        self._newer.extend(index.tokens[owner.prompt_len :])
        self._newer.extend([END])
        self._num_newer += 1

    def _draft(self, row: DraftRow) -> list[int]:
        text = self._indexes.index_of(row)
        longest = 0
        best_score = 0
        matches: list[tuple[array[int], int]] = []
        for index, bonus in (
            (text, OWN_TEXT_BONUS),
            (self._newer, 0),
            (self._older, 0),
            (self._initial, 0),
        ):
            if longest == self._max_depth and len(matches) >= MAX_MATCHES:
                break
            length, positions = index.longest(text.tokens, self._max_depth, MAX_MATCHES)
            if positions and length + bonus > best_score:
                longest = length
                best_score = length + bonus
                matches = []
            if positions and length + bonus == best_score:
                matches += [(index.tokens, position) for position in positions]
        count = min(row.max_draft_tokens, self._max_depth, int(self._spec_factor * longest))
        continuations = [
            tokens[position : position + count] for tokens, position in matches[:MAX_MATCHES]
        ]
        return _majority(continuations, self._min_probability)


def _majority(continuations: Sequence[array[int]], min_share: float) -> list[int]:
    """Return the majority's first token, then the majority's next one after it, and so on.

    Ends when a token's share falls below `min_share`. Common prefixes are copied at once.
    """
    draft: list[int] = []
    while continuations:
        if continuations.count(continuations[0]) == len(continuations):
            draft += continuations[0]
            break
        low = min(continuations)
        high = max(continuations)
        common = next(
            (index for index, (a, b) in enumerate(zip(low, high, strict=False)) if a != b),
            len(low),
        )
        draft += low[:common]
        next_tokens = [tokens[common] if len(tokens) > common else END for tokens in continuations]
        token = max(next_tokens, key=next_tokens.count)
        if token == END or next_tokens.count(token) < min_share * len(continuations):
            break
        continuations = [
            tokens[common:]
            for tokens, next_token in zip(continuations, next_tokens, strict=True)
            if next_token == token
        ]
    return draft[: draft.index(END)] if END in draft else draft


def write_outputs(folder: Path, outputs: Iterable[Sequence[int]]) -> None:
    """Write outputs to a folder, as int16 if all token ids fit."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = torch.tensor(
        [token for output in outputs for token in (*output, END)], dtype=torch.int32
    )
    if int(tokens.max()) <= torch.iinfo(torch.int16).max:
        tokens = tokens.to(torch.int16)
    save_file({"tokens": tokens}, folder / FILE, metadata={"format": "pt"})


def read_outputs(source: ModelSource, vocab_size: int) -> array[int]:
    """Return all tokens, with `END` after each output. Raises `ConfigError` for invalid files."""
    path = Path(source.path or source.name) / FILE
    if not path.is_file():
        raise ConfigError(
            f"--speculative-config.model {source.name!r} has no {FILE}, the initial outputs of the "
            "method suffix."
        )
    try:
        tokens = load_file(path).get("tokens")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Write it again.") from error
    if (
        tokens is None
        or tokens.ndim != 1
        or tokens.dtype not in (torch.int16, torch.int32, torch.int64)
    ):
        raise ConfigError(f"{path} needs a one-dimensional integer tensor 'tokens'.")
    if len(tokens) and not (int(tokens.min()) >= END and int(tokens.max()) < vocab_size):
        raise ConfigError(
            f"{path}: got tokens from {int(tokens.min())} to {int(tokens.max())}; expected the "
            f"model's, up to {vocab_size - 1}. Use outputs of this model."
        )
    return array("i", tokens.tolist())
