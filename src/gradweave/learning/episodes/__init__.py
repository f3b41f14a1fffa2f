"""Episodes of the rule, or of the paper's two policies, round by round. They need no JAX."""
