"""Pictures and films of networks and schedules: a scene written as SVG, PNG, PDF, GIF or MP4."""
