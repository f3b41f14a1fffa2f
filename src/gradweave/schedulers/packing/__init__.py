"""Trees for parts of any size, from the volumes that minimise time."""
