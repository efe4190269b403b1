"""Planning: the best way to cut a model over a cluster, and how large a cluster must be."""

from pipesim.questions.planning.plan import Choice, Plan, plan

__all__ = ["Choice", "Plan", "plan"]
