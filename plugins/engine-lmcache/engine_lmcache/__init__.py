"""KV connector for LMCache: its host memory (L1) and storage adapters (L2)."""
