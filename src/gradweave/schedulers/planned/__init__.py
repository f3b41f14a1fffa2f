"""Trees grown one by one at duals that a trained policy proposes, in milliseconds."""
