"""The search behind `auto` and the zero-bubble family: problem, moves, bounds."""
