"""An emulated network on this machine, to measure what `gradweave.simulate` predicts."""
