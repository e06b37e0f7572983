"""Load reports in answers: ORCA's header, with which a proxy balances servers."""
