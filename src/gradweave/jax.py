"""JAX: schedules inside programs, instead of `jax.lax.psum` in `jax.shard_map`.

Aggregations as optax optimizers, such as gossip and local updates, are in `gradweave.aggregate`.
Needs the extra ``jax``.
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.execute.jax_mesh.backend import server_mesh
    from gradweave.execute.jax_mesh.collective import Collective, all_reduce, exchange

__all__ = ["Collective", "all_reduce", "exchange", "server_mesh"]

__getattr__, __dir__ = lazily(__name__)
