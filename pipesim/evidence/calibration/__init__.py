"""From measurements to parameters: runs, traces, published tables, a user's own step times."""
