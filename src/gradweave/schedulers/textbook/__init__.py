"""Textbook collectives: rings, halving and doubling, binomial trees, parameter servers."""
