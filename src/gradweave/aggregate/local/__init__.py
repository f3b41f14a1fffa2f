"""Local updates: workers train alone for many steps, then exchange how far they have come."""
