"""How long tests wait for what must end anyway."""

PATIENCE_S = 1200.0
"""Only what hangs takes as long, however busy the machine is."""
