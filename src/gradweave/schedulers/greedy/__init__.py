"""Trees grown one by one at duals from a trained policy, in milliseconds."""
