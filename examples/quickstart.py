"""From a network to a verified schedule, its bound, its time and its bytes."""

import gradweave as gw

net = gw.topology.bcube(n=4, k=1)
solution = gw.solve(net)
print(f"{net.name}: {solution.rounds} rounds by {solution.scheduler.name}; {solution.bound}")

gradient_bytes = 100e6
for model in ("rounds", "events"):
    milliseconds = 1e3 * gw.simulator.seconds(solution.schedule, gradient_bytes, model)
    print(f"{milliseconds:.2f} ms for 100 MB, {model} model")

traffic = gw.simulator.traffic(solution.schedule, gradient_bytes)
print(f"each server sends {traffic.sent_bytes.max() / 1e6:.2f} MB at most")

solution.schedule.save("bcube4.json.gz")
again = gw.load("bcube4.json.gz")
print(f"read back and verified: {gw.verify(again).valid}")
