"""Times, messages and memory of a transformer's stages, in closed form."""
