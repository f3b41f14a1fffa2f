"""All-reduce by groups of servers: inside, then across, or the other way round, in pieces."""
