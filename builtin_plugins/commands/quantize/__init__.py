"""`engine quantize`: writes a quantized checkpoint."""
