"""The command line: what its verbs share, and the verbs."""
