"""Tables of values for agents with reward machines, learned apart or together."""
