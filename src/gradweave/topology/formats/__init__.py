"""Networks in files, in ours and in other tools' formats, and as networkx graphs."""
