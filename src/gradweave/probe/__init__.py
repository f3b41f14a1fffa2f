"""A live network, measured into a topology; see `gradweave.probe.session`."""
