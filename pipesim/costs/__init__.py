"""Cost tables, and the models that fill them."""

from pipesim.costs.build import build_costs
from pipesim.costs.table import CostTable

__all__ = ["CostTable", "build_costs"]
