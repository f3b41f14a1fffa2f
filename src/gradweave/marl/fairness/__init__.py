"""Agents that share resources: a hierarchy that learns to be fair, and measures of fairness."""
