"""Rotary factors that depend on a text's length (LongRoPE, dynamic NTK), chosen per request."""
