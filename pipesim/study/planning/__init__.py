"""Planning: the best way to cut a model over a cluster, and how large a cluster must be."""

from pipesim.study.planning.search import Choice, Plan, plan

__all__ = ["Choice", "Plan", "plan"]
