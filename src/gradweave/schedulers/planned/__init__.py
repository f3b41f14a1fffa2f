"""Trees grown one by one at prices that a trained policy proposes, in milliseconds."""
