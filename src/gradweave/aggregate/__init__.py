"""Ways for workers to combine their updates; each is a part of the optimizer, added in one line.

`mean`, `ring`, `parameter_server` and `scheduled` average gradients exactly, with different
messages. `gossip` mixes parameters with those of neighbours by a rule: `d_psgd`, `dcd_psgd`,
`ecd_psgd` and `choco_sgd` are its forms, the last three with compression. With `local_updates`, as
`diloco`, `streaming_diloco` and `noloco`, workers train separately for many steps between
exchanges. All are `optax.GradientTransformation`s for use inside `jax.shard_map`, and need the
extra ``train``. `advise` predicts what they cost on a network. The asynchronous parameter server,
`asynchronous`, is a separate engine, on Ray (extra ``ray``).
"""

from typing import TYPE_CHECKING

from gradweave.common.lazy import lazily

if TYPE_CHECKING:
    from gradweave.aggregate import asynchronous
    from gradweave.aggregate.advice import advise
    from gradweave.aggregate.aggregation import aggregator, resolve
    from gradweave.aggregate.chosen_matchings import exchange_seconds, fast_matchings
    from gradweave.aggregate.compressors import (
        Compressor,
        Grid,
        MaxNorm,
        RandomK,
        RandomKUnscaled,
        TopK,
        TopKChunks,
        Uncompressed,
    )
    from gradweave.aggregate.decentralized import (
        choco_sgd,
        d_psgd,
        dcd_psgd,
        ecd_psgd,
        gossip,
    )
    from gradweave.aggregate.exact_mean import mean, parameter_server, ring_mean, scheduled
    from gradweave.aggregate.local.methods import (
        DiLoCo,
        GASLoC,
        NoLoCo,
        SparseAveraging,
        SparseLoCo,
        StreamingDiLoCo,
        outer_settings,
    )
    from gradweave.aggregate.local.updates import (
        diloco,
        local_updates,
        noloco,
        streaming_diloco,
    )
    from gradweave.aggregate.messages import not_finite, sent_bytes
    from gradweave.aggregate.mixing import MixingMatrix
    from gradweave.aggregate.replicas import consensus, disagreement, replicate
    from gradweave.aggregate.rules import DCDPSGD, DPSGD, ECDPSGD, ChocoSGD, GossipRule
    from gradweave.aggregate.sequences import (
        absent_workers,
        best_contraction,
        changing_clusters,
        changing_matchings,
        contraction,
        failing_links,
        read_trace,
        recorded,
        with_local_steps,
    )
    from gradweave.aggregate.spec import parse
    from gradweave.aggregate.validity import ValidityWarning, check_validity

__all__ = [
    "DCDPSGD",
    "DPSGD",
    "ECDPSGD",
    "ChocoSGD",
    "Compressor",
    "DiLoCo",
    "GASLoC",
    "GossipRule",
    "Grid",
    "MaxNorm",
    "MixingMatrix",
    "NoLoCo",
    "RandomK",
    "RandomKUnscaled",
    "SparseAveraging",
    "SparseLoCo",
    "StreamingDiLoCo",
    "TopK",
    "TopKChunks",
    "Uncompressed",
    "ValidityWarning",
    "absent_workers",
    "advise",
    "aggregator",
    "asynchronous",
    "best_contraction",
    "changing_clusters",
    "changing_matchings",
    "check_validity",
    "choco_sgd",
    "consensus",
    "contraction",
    "d_psgd",
    "dcd_psgd",
    "diloco",
    "disagreement",
    "ecd_psgd",
    "exchange_seconds",
    "failing_links",
    "fast_matchings",
    "gossip",
    "local_updates",
    "mean",
    "noloco",
    "not_finite",
    "outer_settings",
    "parameter_server",
    "parse",
    "read_trace",
    "recorded",
    "replicate",
    "resolve",
    "ring_mean",
    "scheduled",
    "sent_bytes",
    "streaming_diloco",
    "with_local_steps",
]

__getattr__, __dir__ = lazily(__name__, "train")
