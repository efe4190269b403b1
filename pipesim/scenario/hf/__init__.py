"""Hugging Face's ``config.json``, which a scenario's model may name."""
