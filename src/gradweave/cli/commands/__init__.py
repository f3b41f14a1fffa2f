"""The commands, one file each, and a folder for each group of several files."""
