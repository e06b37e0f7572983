"""Models that read images: one of our decoders with a tower of transformers."""
