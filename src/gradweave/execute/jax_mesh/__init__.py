"""Schedules inside JAX programs: an all-reduce in place of `jax.lax.psum` in `jax.shard_map`."""

from gradweave.execute.axis import AXIS
from gradweave.execute.jax_mesh.backend import all_reduce, collective, mesh, row_length, sent_bytes

__all__ = ["AXIS", "all_reduce", "collective", "mesh", "row_length", "sent_bytes"]
