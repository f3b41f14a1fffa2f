"""Starts, watches, coordinates and ends processes, whatever they compute."""
