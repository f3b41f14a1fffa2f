"""How workers combine what they learn: a part of the optimizer, exchanged in one line.

`mean`, `ring`, `parameter_server` and `scheduled` average gradients exactly, each by other
messages. `d_psgd`, `dcd_psgd`, `ecd_psgd` and `choco_sgd` mix parameters with neighbours', the last
three compressed. All are `optax.GradientTransformation`, for use inside `jax.shard_map`, and need
the extra ``train``. The asynchronous parameter server, `asynchronous`, is an engine of its own, on
Ray (extra ``ray``).
"""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.aggregate import asynchronous
    from gradweave.aggregate.compressors import (
        Compressor,
        Exact,
        Grid,
        MaxNorm,
        RandomK,
        RandomKUnscaled,
        TopK,
    )
    from gradweave.aggregate.exact import mean, parameter_server, ring, scheduled
    from gradweave.aggregate.gossip import choco_sgd, d_psgd, dcd_psgd, ecd_psgd, naive_psgd
    from gradweave.aggregate.messages import not_finite, sent_bytes
    from gradweave.aggregate.mixing import MixingMatrix, neighbours
    from gradweave.aggregate.replicas import consensus, disagreement, replicate
    from gradweave.aggregate.spec import Aggregation, from_spec
    from gradweave.aggregate.validity import Validity, ValidityWarning, check

_HOME = {
    "Aggregation": "spec",
    "Compressor": "compressors",
    "Exact": "compressors",
    "Grid": "compressors",
    "MaxNorm": "compressors",
    "MixingMatrix": "mixing",
    "RandomK": "compressors",
    "RandomKUnscaled": "compressors",
    "TopK": "compressors",
    "Validity": "validity",
    "ValidityWarning": "validity",
    "asynchronous": "",
    "check": "validity",
    "choco_sgd": "gossip",
    "consensus": "replicas",
    "d_psgd": "gossip",
    "dcd_psgd": "gossip",
    "disagreement": "replicas",
    "ecd_psgd": "gossip",
    "from_spec": "spec",
    "mean": "exact",
    "naive_psgd": "gossip",
    "neighbours": "mixing",
    "not_finite": "messages",
    "parameter_server": "exact",
    "replicate": "replicas",
    "ring": "exact",
    "scheduled": "exact",
    "sent_bytes": "messages",
}

__all__ = [
    "Aggregation",
    "Compressor",
    "Exact",
    "Grid",
    "MaxNorm",
    "MixingMatrix",
    "RandomK",
    "RandomKUnscaled",
    "TopK",
    "Validity",
    "ValidityWarning",
    "asynchronous",
    "check",
    "choco_sgd",
    "consensus",
    "d_psgd",
    "dcd_psgd",
    "disagreement",
    "ecd_psgd",
    "from_spec",
    "mean",
    "naive_psgd",
    "neighbours",
    "not_finite",
    "parameter_server",
    "replicate",
    "ring",
    "scheduled",
    "sent_bytes",
]

__getattr__, __dir__ = lazily(__name__, _HOME, "train")
