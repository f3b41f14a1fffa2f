"""Learners: policies, values, losses, and a table with one row per algorithm."""
