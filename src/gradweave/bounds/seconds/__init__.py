"""Lower bounds on seconds for collectives among all servers: latency, messages and bytes."""
