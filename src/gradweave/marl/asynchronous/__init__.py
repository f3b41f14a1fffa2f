"""Learners that run as workers of the asynchronous parameter server."""
