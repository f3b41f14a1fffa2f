"""The learned policies as a strategy: a decoder in NumPy and numba, and the weights."""
