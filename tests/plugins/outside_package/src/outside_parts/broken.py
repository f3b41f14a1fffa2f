"""What cannot be imported."""

raise RuntimeError("this was never finished")
