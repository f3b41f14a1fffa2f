"""Lower bounds on seconds for demands of any kind and for several jobs, from link prices."""
