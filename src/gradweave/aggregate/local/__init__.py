"""Local updates: workers train separately for many steps, then average their progress."""
