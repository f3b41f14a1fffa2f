"""Proofs that no schedule has this few rounds, written for `gradweave_refute` to check.

`gradweave_refute` defines the formula. Lemmas on how many pieces can have entered a set of nodes
are derived here by one unit propagation after another. If counting alone does not decide, a SAT
solver that writes LRAT continues from the lemmas.
"""

import base64
import hashlib
import lzma
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gradweave.bounds.certificates import Certified, certified_by
from gradweave.errors import NoProofError
from gradweave.schedules.schedule import Collective
from gradweave.topology.formats.object import topology_to_object
from gradweave.topology.spec import TopologyLike, as_topology
from gradweave_refute import YES, Counter, Formula

Clause = tuple[int, ...]
Solver = Callable[[Sequence[Clause]], Iterable[str]]
"""(clauses) -> lines of an LRAT proof that they are unsatisfiable; clauses are numbered from 1."""


class Derivation:
    """A formula, and derived clauses with the hints that LRAT requires."""

    def __init__(self, formula: Formula) -> None:
        self.clauses: list[Clause] = list(formula.clauses)
        self.given = len(self.clauses)
        self.hints: dict[int, list[int]] = {}
        """Hints by the number of the derived clause, counted from 1."""
        self._about: dict[int, list[int]] = {}
        """Numbers of the clauses by their last variable."""
        for number, clause in enumerate(self.clauses, 1):
            self._note(number, clause)

    def _note(self, number: int, clause: Clause) -> None:
        if clause:
            self._about.setdefault(max(map(abs, clause)), []).append(number)

    def add(self, clause: Clause, hints: list[int]) -> int:
        """Adds a clause that is known to follow; returns its number."""
        self.clauses.append(clause)
        self.hints[len(self.clauses)] = hints
        self._note(len(self.clauses), clause)
        return len(self.clauses)

    def derive(self, literals: Sequence[int], near: Sequence[int]) -> int | None:
        """Derives a clause from clauses about its literals and about some near literals only.

        Returns:
            Its number, or None if it is trivially true.
        """
        if YES in literals:
            return None
        clause = tuple(dict.fromkeys(x for x in literals if x != -YES))
        names = {abs(x) for x in (*literals, *near)} - {YES}
        numbers = sorted({n for name in names for n in self._about.get(name, ())}, reverse=True)
        local = [n for n in numbers if names.issuperset(map(abs, self.clauses[n - 1]))]
        return self.add(clause, self._propagated(clause, local))

    def _propagated(self, clause: Clause, local: Sequence[int]) -> list[int]:
        true, implied = {-x for x in clause}, {}
        found = True
        while found:
            found = False
            for number in local:
                left = [x for x in self.clauses[number - 1] if -x not in true]
                if not left:
                    return self._those_needed(number, implied)
                if len(left) == 1 and left[0] not in true:
                    true.add(left[0])
                    implied[left[0]] = number
                    found = True
        raise NoProofError(f"refutation: a lemma of {len(clause)} literals does not follow")

    def _those_needed(self, conflict: int, implied: Mapping[int, int]) -> list[int]:
        """The clauses that lead to a conflict, of those that each implied a literal, in order."""
        needed, hints = {-x for x in self.clauses[conflict - 1]}, [conflict]
        for literal, number in reversed(list(implied.items())):
            if literal in needed:
                hints.append(number)
                needed.update(-x for x in self.clauses[number - 1])
        return hints[::-1]

    def solve(self, numbers: Sequence[int], solver: Solver) -> None:
        """Adds a solver's proof from some of the clauses, which ends in the empty clause."""
        names = dict(enumerate(numbers, 1))
        for line in solver([self.clauses[number - 1] for number in numbers]):
            words = line.split()
            if words[1] != "d":
                end = words.index("0")
                hints = [names[int(word)] for word in words[end + 1 : -1]]
                names[int(words[0])] = self.add(tuple(map(int, words[1:end])), hints)
                if end == 1:
                    return
        raise NoProofError("refutation: the solver's proof does not end in the empty clause")

    def needed(self) -> list[int]:
        """The given and derived clauses from which the last clause, the empty one, follows."""
        needed = {len(self.clauses)}
        for number in range(len(self.clauses), self.given, -1):
            if number in needed:
                needed.update(self.hints[number])
        return sorted(needed)

    def text(self) -> str:
        """The needed clauses in LRAT, renumbered."""
        needed = [number for number in self.needed() if number > self.given]
        name = {number: self.given + k for k, number in enumerate(needed, 1)}
        rows = []
        for number in needed:
            clause = (name[number], *self.clauses[number - 1], 0)
            hints = (*(name.get(hint, hint) for hint in self.hints[number]), 0)
            rows.append(" ".join(map(str, clause + hints)) + "\n")
        return "".join(rows)


class Entering:
    """Lemmas on one counter: a channel brings one piece per round, so enough must be inside."""

    def __init__(self, counter: Counter, derivation: Derivation) -> None:
        self.counter, self.formula, self.derivation = counter, counter.formula, derivation
        self.done: set[tuple[Any, ...]] = set()

    def derive(self) -> list[int]:
        """Derives how many pieces must be inside, from the last round back to the first.

        Returns:
            Numbers of the unit clauses that state it; the last clause is empty if the counter alone
            proves that this few rounds are impossible.
        """
        everything, facts = len(self.counter.items), []
        for t in reversed(range(self.formula.rounds)):
            for n in range(len(self.counter.ways[t]), 0, -1):
                least = self.counter.least(t, n)
                if least <= 1:
                    return facts
                if n == len(self.counter.ways[t]):
                    self._last_channel(t)
                self._one_fewer(t, n, everything, least - 1)
                known = self._at_least(t, n, everything, least)
                fact = self._at_least(t, n - 1, everything, least - 1)
                number = self.derivation.derive([fact], [known])
                facts += [] if number is None else [number]
                if fact == -YES:
                    return facts
        return facts

    def _after(self, t: int, n: int) -> tuple[int, int]:
        """The state after a channel: after all channels it is the next round."""
        return (t + 1, 0) if n == len(self.counter.ways[t]) else (t, n)

    def _at_least(self, t: int, n: int, i: int, k: int) -> int:
        return self.counter.among(*self._after(t, n), i, k)

    def _last_channel(self, t: int) -> None:
        """A piece that enters the set uses one of its channels."""
        formula, counter, ways = self.formula, self.counter, len(self.counter.ways[t])
        if counter.link:
            self._one_over_the_link(t)
            return
        most = [(a, b, k) for a, b, most in formula.rows for k in range(most * formula.steps[t])]
        into = {c[1] for c in counter.ways[t]} | {*counter.items[0][1]}
        inner = [c for c in most if c[1] in into]
        for i, (p, servers) in enumerate(counter.items, 1):
            near = [formula.sent(p, c, t) for c in inner]
            near += [counter.within(i, t, n) for n in range(ways)]
            near += [formula.holds(p, v, s) for v in servers for s in (t, t + 1)]
            after, before = counter.within(i, t + 1), counter.within(i, t, ways - 1)
            self.derivation.derive([-after, before, counter.brought(i, t, ways)], near)

    def _one_over_the_link(self, t: int) -> None:
        """Only one of the transfers that must take a link can do so in a round."""
        formula, counter = self.formula, self.counter
        coming = [counter.brought(i, t, 1) for i in range(1, len(counter.items) + 1)]
        near: list[list[int]] = []
        for i, (p, (v,)) in enumerate(counter.items):
            route = [(*link, 0) for link in formula.forced(p, v)]
            literals = [formula.sent(p, c, t) for c in route]
            for out, _ in pairwise(route):
                into = [c for c in formula.into[out[0]] if c[0] != out[1]]
                literals += [formula.joins(c, out, t) for c in into]
            literals += [formula.used(q, route[-1], t) for q in range(len(formula.root))]
            near.append([*literals, *(formula.holds(p, v, s) for s in (t, t + 1))])
            for j in range(i):
                both = [coming[i], coming[j], *near[i], *near[j]]
                self.derivation.derive([-coming[i], -coming[j]], both)
                used = [counter.used(k, t, 1) for k in (j, j + 1)]
                self.derivation.derive([-coming[i], -used[1]], [*used, coming[j]])

    def _near(self, t: int, n: int, i: int, k: int) -> list[int]:
        """Literals about the first pieces, the last of them, and a channel."""
        counter, formula = self.counter, self.formula
        near = [counter.within(i, *self._after(t, m)) for m in (n - 1, n)]
        for m in (n - 1, n):
            after = self._after(t, m)
            for j in (i - 1, i):
                for h in (k - 1, k, k + 1):
                    if ("among", counter.key, *after, j, h) in formula.known:
                        near.append(counter.among(*after, j, h))
        near += [counter.brought(i, t, n), counter.used(i - 1, t, n), counter.used(i, t, n)]
        if not counter.link:  # intermediate pieces that are not counted
            first, last = counter.items[i - 2][0] if i > 1 else -1, counter.items[i - 1][0]
            near += [formula.used(q, counter.ways[t][n - 1], t) for q in range(first, last)]
        return near

    def _none_fewer(self, t: int, n: int, i: int, k: int) -> None:
        """If the channel brings none of the first i pieces, as many were inside before."""
        if k <= 0 or k > i or ("none", t, n, i, k) in self.done:
            return
        self.done.add(("none", t, n, i, k))
        self._none_fewer(t, n, i - 1, k)
        self._none_fewer(t, n, i - 1, k - 1)
        after, before = (self._at_least(t, m, i, k) for m in (n, n - 1))
        used = self.counter.used(i, t, n)
        self.derivation.derive([-after, used, before], self._near(t, n, i, k))

    def _one_fewer(self, t: int, n: int, i: int, k: int) -> None:
        """The channel brings at most one of the first i pieces."""
        if k <= 0 or k >= i or ("one", t, n, i, k) in self.done:
            return
        self.done.add(("one", t, n, i, k))
        self._one_fewer(t, n, i - 1, k)
        self._one_fewer(t, n, i - 1, k - 1)
        self._none_fewer(t, n, i - 1, k)
        after, before = self._at_least(t, n, i, k + 1), self._at_least(t, n - 1, i, k)
        self.derivation.derive([-after, before], self._near(t, n, i, k))


def refute(
    topology: TopologyLike,
    question: Mapping[str, Any],
    solver: Solver | None = None,
    *,
    passes: int = 1,
) -> dict[str, Any]:
    """A proof that no schedule has this few rounds, for `gradweave_refute.proved`.

    Args:
        topology: the network.
        question: in the form of `gradweave_refute.Formula`: ``stage``, ``rounds`` and, if not the
            default, ``pieces``, ``trees``, ``steps``. Without ``counters``, the pieces that enter
            the server with the narrowest links are counted.
        solver: used if counting alone does not suffice.
        passes: number of times the solver runs; each run after the first takes only the clauses
            that the best proof needed.

    Returns:
        The question with ``sha256`` and ``lrat_xz`` of the proof.

    Raises:
        NoProofError: no proof was found.

    >>> import gradweave as gw
    >>> import gradweave_refute
    >>> net = gw.topology.mesh((3, 3))
    >>> found = refute(net, {"stage": "all_gather", "rounds": 3})
    >>> gradweave_refute.proved(topology_to_object(net), found)
    139
    """
    topology = as_topology(topology)
    asked = dict(question)
    if "counters" not in asked:
        ends = topology.target if asked["stage"] == "all_gather" else topology.source
        width = np.bincount(ends, topology.capacity, topology.num_nodes)[topology.servers]
        asked["counters"] = [{"nodes": [int(topology.servers[np.argmin(width)])]}]
    formula = Formula(topology_to_object(topology), asked)
    derivation = Derivation(formula)
    facts = [number for one in formula.counted for number in Entering(one, derivation).derive()]
    text = derivation.text() if derivation.clauses[-1] == () else ""
    numbers = [*range(1, derivation.given + 1), *facts]
    for _ in range(passes if not text and solver else 0):
        assert solver is not None
        lemmas = len(derivation.clauses)
        derivation.solve(numbers, solver)
        found = derivation.text()
        text = min(text or found, found, key=len)
        numbers = [number for number in derivation.needed() if number <= lemmas]
    if not text:
        raise NoProofError("refutation: counting alone does not show it, and no solver was given")
    packed = lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {**asked, "sha256": digest, "lrat_xz": base64.b64encode(packed).decode()}


def certify_refutation(
    topology: TopologyLike, collective: Collective, *refuted: Mapping[str, Any]
) -> Certified:
    """The certificate that a collective needs more rounds than were refuted for its stages.

    Args:
        topology: the network.
        collective: a stage, or both.
        refuted: by `refute`, for the stage; for an all-reduce on free trees, one for each stage, in
            order. If links are alike in both directions, one proof serves both stages.

    >>> import gradweave as gw
    >>> net = gw.topology.mesh((3, 3))
    >>> found = refute(net, {"stage": "all_gather", "rounds": 3})
    >>> print(certify_refutation(net, "all_reduce", found, found))
    no reduce-scatter takes 3 rounds, by a refutation whose proof was checked, ...: 8 rounds for
    schedules that root a piece at each server, sum each piece at one server, ...
    """
    topology = as_topology(topology)
    stages = ("reduce_scatter", "all_gather") if collective == "all_reduce" else (collective,)
    steps = [
        {"kind": "refutation", "stage": stage}
        | {name: one[name] for name in ("rounds", "counters", "sha256", "lrat_xz")}
        for stage, one in zip(stages, refuted, strict=True)
    ]
    claim: dict[str, Any] = {"unit": "rounds", "collective": collective}
    if "pieces" in refuted[0]:
        claim["pieces"] = list(refuted[0]["pieces"])
    if refuted[0].get("trees", "free") != "free":
        claim["trees"] = refuted[0]["trees"]
    return certified_by(topology, None, claim, steps)
