"""What every training has: its loop, pace, log, checkpoints, configuration, and advantages.

`gradweave.learning` and `gradweave.marl` bring their own losses and updates.
"""
