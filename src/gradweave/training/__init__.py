"""The parts that all trainings share: loop, pace, log, checkpoints, configuration and advantages.

`gradweave.learning` and `gradweave.marl` add their losses and updates.
"""
