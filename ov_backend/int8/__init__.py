"""int8: the ranges of a network's activations, collected on the user's own pictures, and kept as a recipe without weights."""
