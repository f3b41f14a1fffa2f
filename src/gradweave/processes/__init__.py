"""Processes: started, watched, brought together and ended, whatever they compute."""
