"""A lower bound on the exchange model's cost, for problems of any size, with a certificate."""
