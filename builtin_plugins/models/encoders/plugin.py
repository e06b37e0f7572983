"""Encoders: every base model with its heads for masked words (which are left out), sequences and
tokens.
"""

from __future__ import annotations

from core.api import Entry, hookimpl

HERE = "builtin_plugins.models.encoders"
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")
BASES = {
    "Albert": (f"{HERE}.bert:albert", "ALBERT"),
    "Bert": (f"{HERE}.bert:bert", "BERT"),
    "Camembert": (f"{HERE}.bert:roberta", "CamemBERT"),
    "DebertaV2": (f"{HERE}.deberta:deberta", "DeBERTa 2 and 3"),
    "DistilBert": (f"{HERE}.bert:distilbert", "DistilBERT"),
    "Electra": (f"{HERE}.bert:electra", "ELECTRA"),
    "EuroBert": (f"{HERE}.rotary:eurobert", "EuroBERT"),
    "Gte": (f"{HERE}.rotary:gte", "GTE"),
    "GteNew": (f"{HERE}.rotary:gte", "GTE, as vLLM calls it"),
    "JinaEmbeddingsV3": (f"{HERE}.rotary:jina", "Jina embeddings 3"),
    "MPNet": (f"{HERE}.bert:mpnet", "MPNet"),
    "ModernBert": (f"{HERE}.rotary:modernbert", "ModernBERT"),
    "New": (f"{HERE}.rotary:gte", "GTE, in the files of its authors"),
    "NomicBert": (f"{HERE}.rotary:nomic", "Nomic BERT"),
    "Roberta": (f"{HERE}.bert:roberta", "RoBERTa"),
    "XLMRoberta": (f"{HERE}.bert:roberta", "XLM-RoBERTa; with rotary positions, Jina embeddings 3"),
}


@hookimpl
def engine_models() -> list[Entry]:
    """Return the architectures."""
    return [
        *(
            Entry(base + head, target, summary)
            for base, (target, summary) in BASES.items()
            for head in HEADS
        ),
        Entry("T5EncoderModel", f"{HERE}.bert:t5", "the encoder of T5"),
    ]
