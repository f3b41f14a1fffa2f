"""The mesh axis along which servers, or workers, are arranged; this module does not need JAX."""

AXIS = "server"
"""Default name of the axis."""
AxisName = str | tuple[str, ...]
"""Name of a mesh axis, or of several that form one axis together; the last name varies fastest."""
