"""Families of games, one file each: what is particular to them, and what their rewards are."""
