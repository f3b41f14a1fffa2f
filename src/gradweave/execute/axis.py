"""The mesh axis that servers, or workers, lie on: known without JAX."""

AXIS = "server"
"""Name of the axis where none is given."""
AxisName = str | tuple[str, ...]
"""Name of a mesh axis, or names of several that count as one, the last one running fastest."""
