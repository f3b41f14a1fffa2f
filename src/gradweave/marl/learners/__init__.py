"""What learns: policies, values, losses, and one row an algorithm."""
