"""Circles of imports are those that docs/design/layout.md names, and no others."""

import grimp
import networkx as nx

CIRCLES = [
    {
        f"schedules.{name}"
        for name in ("compose", "file", "given", "implicit", "implicit_file", "schedule")
    },
    {"topology.topology", "topology.links_kernel"},
    {"marl.learners.algorithms", "marl.learners.q_learning"},
]


def circles(with_types: bool) -> list[set[str]]:
    """The sets of files of which each reaches each other by imports, wherever these stand."""
    imports = grimp.build_graph(
        "gradweave", exclude_type_checking_imports=not with_types, cache_dir=None
    )
    graph = nx.DiGraph(
        (module, imported)
        for module in imports.modules
        for imported in imports.find_modules_directly_imported_by(module)
    )
    found = nx.strongly_connected_components(graph)
    return [{name.removeprefix("gradweave.") for name in one} for one in found if len(one) > 1]


def test_circles_are_those_of_the_page():
    assert sorted(map(sorted, circles(with_types=False))) == sorted(map(sorted, CIRCLES))
    assert sorted(map(sorted, circles(with_types=True))) == sorted(map(sorted, CIRCLES))
