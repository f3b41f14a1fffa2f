"""The collectives of textbooks: rings, halving and doubling, binomial trees, parameter servers."""
