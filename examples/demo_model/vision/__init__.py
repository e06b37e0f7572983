"""How the demo model learns to see: drawn pictures, questions about them, a small vision tower."""
