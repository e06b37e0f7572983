"""How the demo model is made: data from seeds, training, evaluation, card and companions."""
