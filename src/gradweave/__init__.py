"""Gradweave: AllReduce schedules for any network."""
