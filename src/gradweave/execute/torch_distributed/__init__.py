"""Schedules on torch.distributed; `gradweave.torch` is the front door."""
