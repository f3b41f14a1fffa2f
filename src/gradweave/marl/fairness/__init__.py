"""Agents who share what there is: a hierarchy that learns to be fair, and measures of fairness."""
