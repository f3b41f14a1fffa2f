"""The best schedule of many strategies, in rounds or in seconds, beside its bound."""
