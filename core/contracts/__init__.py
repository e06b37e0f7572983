"""The contracts: one protocol per kind, which the target of an entry must satisfy.

Torch appears in annotations only, so importing a contract never imports it. Every kind has a
conformance suite of its name.
"""
