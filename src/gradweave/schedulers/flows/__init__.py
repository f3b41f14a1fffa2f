"""Strategies for any demand: collectives of groups, several jobs, point-to-point messages."""
