"""What several strategies' compiled loops share; each part is written down once.

Import these where they are used: they import numba.
"""
