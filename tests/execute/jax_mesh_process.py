"""One of several processes that reduce together.

    python -m tests.execute.jax_mesh_process ADDRESS PROCESSES NUMBER

Raises where this process ends with other bits than the oracle.
"""

import sys

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import gradweave as gw
from gradweave import jax as jax_mesh
from gradweave.execute import play
from gradweave.schedulers import Binomial, CentralParameterServer, Merged, Ring

SIZES = (1, 10007)


def main(address: str, processes: int, number: int) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address, num_processes=processes, process_id=number, initialization_timeout=60
    )
    network = gw.topology.star(processes)
    for scheduler in (Ring(), Merged(), Binomial(), CentralParameterServer()):
        schedule = scheduler.schedule(network, seed=0)
        devices = jax_mesh.server_mesh(schedule)
        assert [device.process_index for device in devices.devices] == list(range(processes))
        whole = [
            np.random.default_rng(0).standard_normal((processes, size)).astype(np.float32)
            for size in SIZES
        ]
        whole.append(np.arange(7 * processes, dtype=np.int32).reshape(processes, 7))
        placed = [
            jax.make_array_from_process_local_data(
                NamedSharding(devices, P("server")), each[number : number + 1]
            )
            for each in whole
        ]
        run = jax.jit(
            jax.shard_map(
                jax_mesh.Collective(schedule),
                mesh=devices,
                in_specs=P("server"),
                out_specs=P("server"),
                check_vma=False,
            )
        )
        # All floats together are one gradient.
        floats = np.concatenate(whole[:2], axis=1)
        expected = np.split(play(schedule, floats), [SIZES[0]], axis=1)
        expected.append(play(schedule, whole[2]))
        for got, wanted in zip(run(placed), expected, strict=True):
            mine = np.asarray(got.addressable_shards[0].data)
            assert mine.tobytes() == wanted[number].tobytes(), schedule
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
