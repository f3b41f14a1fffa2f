"""Gradweave as a backend of torch.distributed.

    import gradweave.torch

    torch.distributed.init_process_group("gradweave")

An installed Gradweave registers itself when PyTorch is imported, so that the import is needed only
where that is switched off (``TORCH_DEVICE_BACKEND_AUTOLOAD=0``).
"""

from gradweave.torch.registration import NAME, register

register()

__all__ = ["NAME", "register"]
