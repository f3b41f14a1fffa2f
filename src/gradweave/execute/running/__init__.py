"""Collectives on real processes that are started, checked, timed and supervised."""
