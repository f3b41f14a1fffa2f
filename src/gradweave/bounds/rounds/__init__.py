"""Lower bounds on rounds, from cuts and from how late pieces can cross them."""
