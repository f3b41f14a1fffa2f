"""Worlds of Gradweave's own, whose agents cause the events that reward machines hear."""
