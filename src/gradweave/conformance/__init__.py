"""What schedulers, strategies for demands, families of networks and others promise, checked.

The project's own tests use the same checks, with its own table of strategies and networks.
"""

from gradweave.conformance.conform import conform
from gradweave.conformance.finding import Finding

__all__ = ["Finding", "conform"]
