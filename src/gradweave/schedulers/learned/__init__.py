"""The learned policies as a strategy: their decoder in NumPy and numba, and their weights."""
