"""Schedules on torch.distributed: collectives on any process group, and a hook for DDP."""

from gradweave.execute.torch_distributed.backend import Collective, State, all_reduce, hook, state
from gradweave.execute.torch_distributed.demands import exchange, exchange_by

__all__ = ["Collective", "State", "all_reduce", "exchange", "exchange_by", "hook", "state"]
