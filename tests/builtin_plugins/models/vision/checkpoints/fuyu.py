"""Fuyu: patches of an image are projected to the embeddings of Persimmon."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any, Final

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers

from builtin_plugins.input_processors.transformers.fuyu_images import FuyuImageProcessorPil
from core.testing.tiny_configs import SHAPE
from tests.builtin_plugins.models.vision.checkpoints.common import save

PICTURE: Final = "|SPEAKER|"
PIECES: Final = ("<unk>", "|ENDOFTEXT|", PICTURE, "|NEWLINE|", "<s>", "<0x04>", "\u2581")


def _tokenizer() -> Any:
    """Return a tokenizer of characters that puts a space before a text; as in the published one,
    the tokens of images are pieces of its vocabulary.
    """
    characters = [each for each in string.printable if each not in " \r\x0b\x0c"]
    scores = [(piece, 0.0) for piece in PIECES] + [(each, -10.0) for each in characters]
    inner = Tokenizer(models.Unigram(scores, unk_id=0))
    space = normalizers.Replace(" ", "\u2581")
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), space])
    inner.decoder = decoders.Metaspace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="|ENDOFTEXT|")


def fuyu(folder: Path) -> None:
    """Fuyu: an image of up to 30 x 40 pixels in patches of 5, a token ends each row of them."""
    own = _tokenizer()
    config = transformers.FuyuConfig(
        text_config={
            **SHAPE,
            "model_type": "persimmon",
            "bos_token_id": None,
            "eos_token_id": None,
        },
        image_size=40,
        patch_size=5,
        image_token_id=own.convert_tokens_to_ids(PICTURE),
    )
    save(transformers.FuyuForCausalLM(config), folder)
    images = FuyuImageProcessorPil(
        size={"height": 30, "width": 40}, patch_size={"height": 5, "width": 5}
    )
    transformers.FuyuProcessor(images, own).save_pretrained(folder)
