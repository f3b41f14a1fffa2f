"""A custom cluster: two racks with unequal links, and one server attached to another server."""

import networkx as nx

import gradweave as gw

graph = nx.Graph()
for rack, servers in (("left", 4), ("right", 3)):
    graph.add_node(rack, kind="switch")
    for number in range(servers):
        graph.add_node(f"{rack}{number}", kind="server")
        graph.add_edge(f"{rack}{number}", rack, bandwidth="25Gbit/s", latency="2us")
graph.add_edge("left", "right", bandwidth="50Gbit/s", latency="5us")
graph.add_node("storage", kind="server")
graph.add_edge("storage", "left0", bandwidth="25Gbit/s", latency="1us")

net = gw.topology.from_networkx(graph, name="two racks")
print(net)
solution = gw.solve(net)
timing = solution.timing  # links differ, so seconds for 100 MB were minimised
print(f"{1e3 * timing.seconds:.2f} ms by {gw.schedulers.to_spec(solution.scheduler)}")
print(f"{solution.bound}; {solution.gap:.1%} above it")
for attempt in solution.attempts:
    found = attempt.reason if attempt.seconds is None else f"{1e3 * attempt.seconds:.2f} ms"
    print(f"  {gw.schedulers.to_spec(attempt.scheduler):28} {found}")
