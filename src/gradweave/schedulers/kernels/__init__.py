"""Building blocks shared by the compiled loops of several strategies.

Import these where they are used: they import numba.
"""
