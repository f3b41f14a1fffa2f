"""The name ``gradweave`` among the backends of torch.distributed.

PyTorch calls `register` by an entry point while it is imported itself: so nothing else is imported
here until a process group is made.
"""

from typing import Any

NAME = "gradweave"
"""For `torch.distributed.init_process_group` and `new_group`."""


def register() -> None:
    """Registers the backend, once; does nothing where PyTorch has no torch.distributed."""
    import torch.distributed as dist

    if dist.is_available() and NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, backend_options: Any) -> Any:
    from gradweave.torch.group import create

    return create(options)
