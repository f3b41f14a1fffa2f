"""Demands other than an all-reduce: messages from server to server."""
