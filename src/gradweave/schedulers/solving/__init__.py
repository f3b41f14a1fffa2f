"""Search over many strategies for the best schedule, in rounds or seconds, and its lower bound."""
