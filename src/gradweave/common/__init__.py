"""What every package uses: clocks and stops, checks, arrays in files, plugins, compiled loops."""
