"""Readers of other tools' files: each turns one format into a scenario's mapping."""
