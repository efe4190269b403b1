"""Parts of the `auto` schedule: problem, seeds from named schedules, search, bounds, exact solver."""
