"""Names that programs written for vLLM import, over the engine of this package."""
