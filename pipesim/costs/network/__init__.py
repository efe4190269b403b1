"""Links, collectives and wires: how long messages take, and what they cross."""
