"""Pipelines and all-reduces in time, event by event on the network."""
