"""Networks: servers, switches and links, known families, files and routes."""

from gradweave.topology import faults, routes, symmetry
from gradweave.topology import subnetwork as parts
from gradweave.topology.families.accelerator_tori import tpu_torus, trn2
from gradweave.topology.families.bcube import bcube
from gradweave.topology.families.circulant import circulant
from gradweave.topology.families.complete import complete
from gradweave.topology.families.dcell import dcell
from gradweave.topology.families.dragonfly import dragonfly
from gradweave.topology.families.dragonfly_plus import dragonfly_plus
from gradweave.topology.families.family import spec_name
from gradweave.topology.families.fat_tree import fat_tree
from gradweave.topology.families.hypercube import hypercube
from gradweave.topology.families.hyperx import hyperx
from gradweave.topology.families.jellyfish import jellyfish, jellyfish_reference
from gradweave.topology.families.leaf_spine import leaf_spine
from gradweave.topology.families.machines import gpu_boxes
from gradweave.topology.families.places.cities import cities
from gradweave.topology.families.ring import ring
from gradweave.topology.families.slim_fly import slim_fly
from gradweave.topology.families.star import star
from gradweave.topology.families.torus import mesh, torus
from gradweave.topology.families.xpander import xpander
from gradweave.topology.formats import files, graph
from gradweave.topology.formats.files import read
from gradweave.topology.formats.graph import from_networkx
from gradweave.topology.formats.host_tree import HostLinks
from gradweave.topology.named_faults import Faults
from gradweave.topology.spec import from_spec, on_network
from gradweave.topology.topology import Link, Topology

degraded = on_network(faults.degraded)
free_groups = on_network(symmetry.free_groups)
hop_distances = on_network(routes.hop_distances)
random_faults = on_network(faults.random_faults)
save = on_network(files.save)
shortest_path_trees = on_network(routes.shortest_path_trees)
shortest_route = on_network(routes.shortest_route)
slowed = on_network(faults.slowed)
subnetwork = on_network(parts.subnetwork)
to_networkx = on_network(graph.to_networkx)
without_links = on_network(faults.without_links)
without_servers = on_network(faults.without_servers)

__all__ = [
    "Faults",
    "HostLinks",
    "Link",
    "Topology",
    "bcube",
    "circulant",
    "cities",
    "complete",
    "dcell",
    "degraded",
    "dragonfly",
    "dragonfly_plus",
    "fat_tree",
    "free_groups",
    "from_networkx",
    "from_spec",
    "gpu_boxes",
    "hop_distances",
    "hypercube",
    "hyperx",
    "jellyfish",
    "jellyfish_reference",
    "leaf_spine",
    "mesh",
    "random_faults",
    "read",
    "ring",
    "save",
    "shortest_path_trees",
    "shortest_route",
    "slim_fly",
    "slowed",
    "spec_name",
    "star",
    "subnetwork",
    "to_networkx",
    "torus",
    "tpu_torus",
    "trn2",
    "without_links",
    "without_servers",
    "xpander",
]
