"""What several attention backends do alike."""
