"""The verbs: one file each, thin."""
