"""Strategies that place: one protocol, one strategy a file."""
