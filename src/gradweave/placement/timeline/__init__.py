"""Event-based simulation of pipelines and all-reduces on the network."""
