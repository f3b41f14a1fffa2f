"""Trained policies as strategies use them: message passing without JAX, and the shipped weights."""
