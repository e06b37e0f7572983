"""HTTP over uvicorn."""
