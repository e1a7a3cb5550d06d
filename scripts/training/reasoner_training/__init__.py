"""How the shipped model was made: its chains, its training, and what the result must hold."""
