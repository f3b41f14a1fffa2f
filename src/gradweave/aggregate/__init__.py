"""How workers combine what they learn: a part of the optimizer, exchanged in one line.

`mean`, `ring`, `parameter_server` and `scheduled` average gradients exactly, each by other
messages. `gossip` mixes parameters with neighbours', by a rule: `d_psgd`, `dcd_psgd`, `ecd_psgd`
and `choco_sgd` are its forms, the last three compressed. By `local_updates`, as `diloco`,
`streaming_diloco` and `noloco`, workers train alone for many steps between exchanges. All are
`optax.GradientTransformation`, for use inside `jax.shard_map`, and need the extra ``train``. The
asynchronous parameter server, `asynchronous`, is an engine of its own, on Ray (extra ``ray``).
"""

from typing import TYPE_CHECKING

from gradweave.lazy import lazily

if TYPE_CHECKING:
    from gradweave.aggregate import asynchronous
    from gradweave.aggregate.aggregation import Aggregation, from_spec, resolve
    from gradweave.aggregate.chosen_matchings import exchange_seconds, fast_matchings
    from gradweave.aggregate.compressors import (
        Compressor,
        Exact,
        Grid,
        MaxNorm,
        RandomK,
        RandomKUnscaled,
        TopK,
        Uncompressed,
    )
    from gradweave.aggregate.decentralized import (
        choco_sgd,
        d_psgd,
        dcd_psgd,
        ecd_psgd,
        gossip,
        naive_psgd,
    )
    from gradweave.aggregate.exact_mean import mean, parameter_server, ring, scheduled
    from gradweave.aggregate.local.methods import (
        DiLoCo,
        NoLoCo,
        StreamingDiLoCo,
        outer_settings,
    )
    from gradweave.aggregate.local.updates import (
        counted,
        diloco,
        local_updates,
        noloco,
        streaming_diloco,
    )
    from gradweave.aggregate.messages import not_finite, sent_bytes
    from gradweave.aggregate.mixing import MixingMatrix, neighbours
    from gradweave.aggregate.replicas import consensus, disagreement, replicate
    from gradweave.aggregate.rules import DCDPSGD, DPSGD, ECDPSGD, ChocoSGD, GossipRule, NaivePSGD
    from gradweave.aggregate.sequences import (
        Contraction,
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
    from gradweave.aggregate.spec import AggregationSpec, parse
    from gradweave.aggregate.validity import Validity, ValidityWarning, check

__all__ = [
    "DCDPSGD",
    "DPSGD",
    "ECDPSGD",
    "Aggregation",
    "AggregationSpec",
    "ChocoSGD",
    "Compressor",
    "Contraction",
    "DiLoCo",
    "Exact",
    "GossipRule",
    "Grid",
    "MaxNorm",
    "MixingMatrix",
    "NaivePSGD",
    "NoLoCo",
    "RandomK",
    "RandomKUnscaled",
    "StreamingDiLoCo",
    "TopK",
    "Uncompressed",
    "Validity",
    "ValidityWarning",
    "absent_workers",
    "asynchronous",
    "best_contraction",
    "changing_clusters",
    "changing_matchings",
    "check",
    "choco_sgd",
    "consensus",
    "contraction",
    "counted",
    "d_psgd",
    "dcd_psgd",
    "diloco",
    "disagreement",
    "ecd_psgd",
    "exchange_seconds",
    "failing_links",
    "fast_matchings",
    "from_spec",
    "gossip",
    "local_updates",
    "mean",
    "naive_psgd",
    "neighbours",
    "noloco",
    "not_finite",
    "outer_settings",
    "parameter_server",
    "parse",
    "read_trace",
    "recorded",
    "replicate",
    "resolve",
    "ring",
    "scheduled",
    "sent_bytes",
    "streaming_diloco",
    "with_local_steps",
]

__getattr__, __dir__ = lazily(__name__, "train")
