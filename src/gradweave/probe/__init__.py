"""Measures a live network into a topology; see `gradweave.probe.session`."""
