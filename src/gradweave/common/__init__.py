"""Shared by all packages: clocks and stops, checks, arrays in files, plugins, compiled loops."""
