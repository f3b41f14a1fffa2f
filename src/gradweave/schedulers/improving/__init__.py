"""Improves a schedule's time: its order, the sizes of its pieces and their trees."""
