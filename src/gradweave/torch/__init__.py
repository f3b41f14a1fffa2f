"""PyTorch: schedules on process groups, hooks of DDP and FSDP, and the backend ``gradweave``.

    torch.distributed.init_process_group("gradweave")

An installed Gradweave registers the backend when PyTorch is imported. If that autoloading is
switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``), ``import gradweave.torch`` registers it.
Needs the extra ``torch``.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily
from gradweave.torch.registration import register

if TYPE_CHECKING:
    from gradweave.aggregate.local.quorum import QuorumMember
    from gradweave.aggregate.local.torch_exchanges import (
        ByMixing,
        BySchedule,
        Compressed,
        Gathered,
    )
    from gradweave.aggregate.local.torch_hook import LocalUpdates
    from gradweave.aggregate.torch_gossip import Gossip
    from gradweave.execute.torch_distributed.backend import Collective, all_reduce
    from gradweave.execute.torch_distributed.ddp import ddp_hook
    from gradweave.execute.torch_distributed.demands import exchange
    from gradweave.execute.torch_distributed.fsdp import fsdp_hooks
    from gradweave.execute.torch_distributed.ray_adapter import register_ray_backend
    from gradweave.execute.torch_distributed.shrinking import Returning
    from gradweave.execute.torch_distributed.torchft_adapter import torchft_process_group

register()

__all__ = [
    "ByMixing",
    "BySchedule",
    "Collective",
    "Compressed",
    "Gathered",
    "Gossip",
    "LocalUpdates",
    "QuorumMember",
    "Returning",
    "all_reduce",
    "ddp_hook",
    "exchange",
    "fsdp_hooks",
    "register_ray_backend",
    "torchft_process_group",
]

__getattr__, __dir__ = lazily(__name__)
