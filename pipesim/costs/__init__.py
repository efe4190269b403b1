"""Cost tables, and the models that fill them."""

from pipesim.costs.table import CostTable

__all__ = ["CostTable"]
