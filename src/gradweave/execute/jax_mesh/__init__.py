"""Schedules inside JAX programs: in place of `jax.lax.psum`, and any demand, in `jax.shard_map`."""

from gradweave.execute.axis import AXIS
from gradweave.execute.jax_mesh.backend import all_reduce, collective, mesh, row_length, sent_bytes
from gradweave.execute.jax_mesh.demands import exchange

__all__ = ["AXIS", "all_reduce", "collective", "exchange", "mesh", "row_length", "sent_bytes"]
