"""Trees for parts of any size, from the volumes that take the least time."""
