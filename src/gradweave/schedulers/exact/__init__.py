"""The optimum by constraint programming, or a proof that there is nothing better."""
