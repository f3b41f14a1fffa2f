"""Agents who share what there is: fair and efficient by a hierarchy, and what that is judged by."""
