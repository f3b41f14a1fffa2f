"""Gradweave's worlds, whose agents trigger events that move reward machines."""
