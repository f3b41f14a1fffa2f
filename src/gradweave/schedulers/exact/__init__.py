"""Optimal schedules and proofs of optimality by constraint programming."""
