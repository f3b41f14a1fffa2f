"""Checks of the promises of schedulers, demand strategies, network families and other parts.

The project's tests use the same checks, with their own table of strategies and networks.
"""

from gradweave.conformance.conform import conform
from gradweave.conformance.finding import Finding

__all__ = ["Finding", "conform"]
