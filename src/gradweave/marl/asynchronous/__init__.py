"""Learners as workers of the asynchronous parameter server."""
