"""Workers over eight devices and on one: the same numbers. Run by test_saddle_devices.py."""

import jax
import networkx as nx
import numpy as np

from gradweave import aggregate, saddle

RANDOM = nx.random_regular_graph(3, 8, seed=0)
CASES = {
    "neighbours": (8, aggregate.MixingMatrix.ring(8), {}),
    "two matchings in turns": (8, aggregate.MixingMatrix.in_matchings(nx.cycle_graph(8)), {}),
    "many steps": (8, aggregate.failing_links(RANDOM, 0.3, steps=40), {}),
    "two a device": (16, aggregate.changing_clusters(16, 4, steps=40), {}),
    "compressed": (
        8,
        aggregate.MixingMatrix.ring(8),
        {"rule": aggregate.ChocoSGD(0.5), "compressor": aggregate.MaxNorm(4), "local_steps": 3},
    ),
}


def apart(name: str) -> float:
    workers, mixing, options = CASES[name]
    problem = saddle.bilinear(workers, 3, 0.3, strength=0.2, noise=0.1)
    z = []
    for mesh in (None, saddle.mesh_of(8)):
        solver = saddle.Solver(problem, saddle.Tracked(0.1), mixing, mesh=mesh, **options)
        state = solver.run(solver.init(jax.random.key(0)), 50)
        z.append(np.asarray(state.z))
    assert np.abs(z[0]).max() > 0.1
    return float(np.abs(z[0] - z[1]).max())


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    for case in CASES:
        error = apart(case)
        print(case, error)
        assert error < 1e-13
