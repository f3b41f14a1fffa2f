"""A lower bound of the exchange model's cost, for every size, with a certificate."""
