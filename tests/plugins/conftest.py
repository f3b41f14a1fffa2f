collect_ignore = ["outside_package"]  # a package of its own, of which one part is broken
