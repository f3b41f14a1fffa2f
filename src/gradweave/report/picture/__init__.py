"""Pictures and films of networks and schedules: one scene, written as SVG, PNG, PDF, GIF or MP4."""
