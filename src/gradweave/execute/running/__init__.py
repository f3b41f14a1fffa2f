"""Runs collectives on real processes: starts, checks, times and supervises them."""
