"""Costs of a user's PyTorch model, traced layer by layer without running it."""
