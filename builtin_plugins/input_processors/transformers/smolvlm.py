"""The processor of SmolVLM without num2words, which only videos need."""

from __future__ import annotations

from transformers import Idefics3Processor


class SmolVLMProcessor(Idefics3Processor):
    """The text of an image is that of Idefics3."""
