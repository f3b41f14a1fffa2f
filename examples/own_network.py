"""A cluster of one's own: two racks with unequal links, one server that hangs off another."""

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
print(f"{solution.rounds} rounds by {gw.schedulers.to_spec(solution.scheduler)}")
print(solution.bound)
for attempt in solution.attempts:
    print(f"  {gw.schedulers.to_spec(attempt.scheduler):28} {attempt.rounds or attempt.reason}")
