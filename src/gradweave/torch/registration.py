"""Registers the name ``gradweave`` as a backend of torch.distributed.

PyTorch calls `register` through an entry point while PyTorch itself is being imported. So this
module imports nothing else until a process group is created.
"""

import functools
import os
import sys
from typing import Any

NAME = "gradweave"
"""The backend's name for `torch.distributed.init_process_group` and `new_group`."""
DEFAULT = "GRADWEAVE_DEFAULT"
"""The variable that gives this backend to programs that ask for gloo."""
_CALLERS = ("torch.distributed", "torch.distributed.distributed_c10d")
_CALLERS += ("torch.distributed.device_mesh",)
"""Modules of PyTorch that import ``init_process_group`` by name."""


def register() -> None:
    """Registers the backend once; does nothing if PyTorch was built without torch.distributed.

    With ``GRADWEAVE_DEFAULT=1`` it also replaces gloo in default groups: see
    `in_place_of_gloo`.
    """
    import torch.distributed as dist

    if not dist.is_available() or NAME in dist.Backend.backend_list:
        return
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
    if os.environ.get(DEFAULT, "") not in ("", "0"):
        _take_over(dist)


def in_place_of_gloo(backend: str | None, *, accelerator: bool) -> str | None:
    """The backend for a default group, with gloo replaced by this backend.

    Meant for frameworks that choose the backend themselves and offer no option for it.

    Args:
        backend: the argument of ``init_process_group``, or None to let PyTorch choose.
        accelerator: whether the machine has an accelerator; if so, PyTorch does not choose
            gloo.

    >>> in_place_of_gloo("gloo", accelerator=True), in_place_of_gloo(None, accelerator=False)
    ('gradweave', 'gradweave')
    >>> in_place_of_gloo("cpu:gloo,cuda:nccl", accelerator=True)
    'cpu:gradweave,cuda:nccl'
    >>> in_place_of_gloo("nccl", accelerator=True), in_place_of_gloo(None, accelerator=True)
    ('nccl', None)
    """
    if backend is None:
        return None if accelerator else NAME
    devices = [one.strip() for one in str(backend).lower().split(",")]
    replaced = {"gloo": NAME, "cpu:gloo": f"cpu:{NAME}"}
    return ",".join(replaced.get(device, device) for device in devices)


def _take_over(dist: Any) -> None:
    """Makes PyTorch's ``init_process_group`` create this backend when a program asks for gloo."""
    import torch

    original = dist.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        has_one = torch.accelerator.current_accelerator() is not None
        return original(in_place_of_gloo(backend, accelerator=has_one), *args, **kwargs)

    for module in (sys.modules.get(name) for name in _CALLERS):
        if getattr(module, "init_process_group", None) is original:
            setattr(module, "init_process_group", init_process_group)  # noqa: B010


def _create(options: Any, backend_options: Any) -> Any:
    from gradweave.torch.group import create

    return create(options)
