"""Games: a common view of all of them, and their pictures."""
