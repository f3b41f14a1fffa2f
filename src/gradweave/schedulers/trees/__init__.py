"""One tree per piece: merged from shortest routes, grown round by round, or grown per orbit."""
