"""Families of games, one per file: what is specific to them, and the meaning of their rewards."""
