"""Real training of a placement: stages, pipelines and averages in PyTorch processes."""
