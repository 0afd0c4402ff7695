"""What a step needs (its plan). Depends on the graph and the seed, never on weights."""
