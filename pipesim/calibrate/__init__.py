"""From measurements to parameters: published tables, a user's own step times."""
