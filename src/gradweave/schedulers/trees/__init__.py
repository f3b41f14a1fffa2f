"""One tree a piece: merged from shortest routes, grown round by round, or grown for an orbit."""
