"""Networks of places: published tables of wide-area networks."""
