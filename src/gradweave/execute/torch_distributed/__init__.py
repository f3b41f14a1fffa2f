"""Schedules on torch.distributed: an all-reduce on any process group, and a hook for DDP."""

from gradweave.execute.torch_distributed.backend import Collective, State, all_reduce, hook, state

__all__ = ["Collective", "State", "all_reduce", "hook", "state"]
