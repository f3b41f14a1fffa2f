"""Improves a schedule: its order, and the sizes and the number of its pieces."""
