"""Placement strategies: one protocol, one strategy per file."""
