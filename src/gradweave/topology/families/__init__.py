"""Networks of known families, and machines that people have: one family a file."""
