"""Orders in time: cuts plans into pieces, gives each transfer a start, and writes the schedule."""
