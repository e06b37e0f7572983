"""The runner of models that generate: what users may ask of sampling, and from hidden states to
tokens.
"""
