"""Checks proofs that no schedule takes this few rounds: one file to copy.

    python gradweave_refute.py FILE.json [PROOF.lrat[.xz] | --dimacs | --lrat]

Needs only Python 3.11, and shares no code with the programs that make schedules or proofs. A file
has a network, as in a schedule's file, under "topology"; under "refutation" it has a question, such
as {"stage": "all_gather", "rounds": 7}, and its proof, unless that is in a separate file. Network
and question determine a formula in conjunctive normal form that every schedule of this few rounds
satisfies. The LRAT proof that it has no solution is checked by unit propagation. `--dimacs` and
`--lrat` write formula and proof for other checkers. Why each clause holds: Gradweave's
docs/concepts/refutations.md. Exit status: 0 it is proved, 1 it is not, 2 no such file.
"""
# fmt: off
import base64, hashlib, json, lzma, sys
from itertools import combinations, pairwise

LARGEST = 1 << 24  # sendings of a formula, what counters count, eighths of a proof's bytes
YES = 1  # the variable that is true; -YES is false
STAGES = ("reduce_scatter", "all_gather")
BROKEN = (TypeError, KeyError, ValueError, IndexError, AttributeError, OSError, EOFError,
          lzma.LZMAError)


class Wrong(Exception):
    """A fault, in one line."""


def need(holds, otherwise):
    if not holds:
        raise Wrong(otherwise)


class Formula:
    """The rules of a schedule with some number of rounds, in clauses of DIMACS literals.

    A question has a `stage` and `rounds`. Optional: `pieces` of each server in order of id (1);
    `trees` ("free"; "shortest": a piece takes shortest paths from its root; or for each server, in
    order of id, each node's predecessor in its tree, -1 for none); `steps` (rounds per step, within
    which nothing is forwarded; 1 each); and `counters`, for which variables are defined.
    """

    def __init__(self, network, question):
        self.clauses, self.names, self.known = [(YES,)], {("yes",): YES}, {}
        links = network["links"]
        stage, rounds = question["stage"], question["rounds"]
        need(stage in STAGES and 0 < rounds < 1 << 16, "question: stage or rounds")
        self.steps = question.get("steps") or [1] * rounds
        need(sum(self.steps) == rounds and min(self.steps) > 0, "question: steps")
        self.rounds = len(self.steps)  # from here on a step is a round, with more channels
        self.servers = sorted(network["servers"])
        # A reduce-scatter, reversed, is an all-gather over the opposite link directions.
        ends = ("source", "target") if stage == "all_gather" else ("target", "source")
        self.rows = sorted(zip(links[ends[0]], links[ends[1]], links["capacity"], strict=True))
        self.links = [(a, b) for a, b, _ in self.rows]
        self.nodes = {*self.servers, *network["switches"]}
        good = self.nodes == {*range(len(self.nodes))} and {*sum(self.links, ())} <= self.nodes
        need(good and len({*self.links}) == len(self.rows), "network: nodes or links")
        pieces = question.get("pieces") or [1] * len(self.servers)
        good = min(pieces) >= 0 < min(most for *_, most in self.rows)
        channels = sum(most for *_, most in self.rows) * rounds
        need(good and 0 < channels * sum(pieces) < LARGEST, "question: pieces, or too large")
        self.left = LARGEST  # what counters may count
        self.root = [v for v, n in zip(self.servers, pieces, strict=True) for _ in range(n)]
        self.allowed = self.trees(question.get("trees", "free"))
        for t, step in enumerate(self.steps):
            # A link of capacity c is c channels, which carry a piece a round each.
            self.channels = [(a, b, k) for a, b, most in self.rows for k in range(most * step)]
            self.into = {v: [c for c in self.channels if c[1] == v] for v in self.nodes}
            self.out_of = {v: [c for c in self.channels if c[0] == v] for v in self.nodes}
            self.carried(t)
            self.received(t)
            for switch in sorted(self.nodes - {*self.servers}):
                self.switched(switch, t)
        self.numbered()
        counters = question.get("counters", ())
        need(len(counters) <= len(self.nodes), "counters: too many")
        self.counted = [Counter(self, c) for c in counters]

    def trees(self, trees):
        """{(root, link)}: the link directions that pieces of a root may take."""
        found = set()
        for rank, root in enumerate(self.servers):
            away, last = {root: 0}, [root]
            while last and trees == "shortest":
                last = [b for a, b in self.links if a in last and b not in away]
                away |= dict.fromkeys(last, max(away.values()) + 1)
            for a, b in self.links:
                if trees == "free" or (
                        away[b] == away[a] + 1 if trees == "shortest" else trees[rank][b] == a):
                    found.add((root, a, b))
        return found

    def forced(self, piece, node):
        """The links, back to a server, over which alone a piece can come to a node."""
        found, root = [], self.root[piece]
        while True:
            ways = [(a, b) for a, b in self.links if b == node and (root, a, b) in self.allowed]
            if len(ways) != 1 or ways[0] in found:
                return found
            found, node = [*found, ways[0]], ways[0][0]
            if node in self.servers:
                return found

    def new(self, *name):
        """The variable of a name."""
        return self.names.setdefault(name, len(self.names) + 1)

    def add(self, *literals):
        if YES not in literals and all(-x not in literals for x in literals if x != -YES):
            self.clauses.append(tuple(dict.fromkeys(x for x in literals if x != -YES)))

    def either(self, name, *literals):
        """A literal that is true exactly if one of some is: a variable of this name if needed."""
        if name not in self.known:
            some = [x for x in dict.fromkeys(literals) if x != -YES]
            found = YES if YES in some else some[0] if some else -YES
            if YES not in some and len(some) > 1:
                found = self.new(*name)
                self.add(-found, *some)
                for x in some:
                    self.add(found, -x)
            self.known[name] = found
        return self.known[name]

    def holds(self, p, v, t):
        """Server v has piece p before round t: before round 0 only its root, in the end all."""
        if v == self.root[p] or t == self.rounds:
            return YES
        return self.new("holds", p, v, t) if t else -YES

    def sent(self, p, c, t):
        """The transfer by which a server first gets p takes channel c in round t."""
        a, b, _ = c
        good = b != self.root[p] and (self.root[p], a, b) in self.allowed
        return self.new("sent", p, c, t) if good else -YES

    def used(self, p, c, t):
        """Channel c carries p, or an earlier piece, in round t."""
        return self.new("used", p, c, t) if p >= 0 else -YES

    def joins(self, c, out, t):
        """At a switch, the piece from one channel in round t goes on over another."""
        return self.new("joins", c, out, t)

    def carried(self, t):
        """A channel carries one piece; the channels of a link carry pieces in their order."""
        for c in self.channels:
            for p in range(len(self.root)):
                sent, used, before = self.sent(p, c, t), self.used(p, c, t), self.used(p - 1, c, t)
                self.add(-sent, used)
                self.add(-before, used)
                self.add(-sent, -before)
                self.add(-used, before, sent)
                if c[2]:
                    self.add(-sent, self.used(p, (*c[:2], c[2] - 1), t))

    def received(self, t):
        """A server keeps its pieces, and gets each once, from a node that has it."""
        for p in range(len(self.root)):
            for v in self.servers:
                before, after = self.holds(p, v, t), self.holds(p, v, t + 1)
                came = [self.sent(p, c, t) for c in self.into[v]]
                self.add(-before, after)
                self.add(-after, before, *came)
                for x in came:
                    self.add(-x, -before)
                    self.add(-x, after)
                for x, y in combinations(came, 2):
                    self.add(-x, -y)
                for c in self.out_of[v]:
                    self.add(-self.sent(p, c, t), before)

    def switched(self, switch, t):
        """A piece that leaves a switch over a channel came over one channel, and leaves it once."""
        for out in self.out_of[switch]:
            ways = [c for c in self.into[switch] if c[0] != out[1]]
            joins = [self.joins(c, out, t) for c in ways]
            for p in range(len(self.root)):
                sent, came = self.sent(p, out, t), [self.sent(p, c, t) for c in ways]
                self.add(-sent, *joins)
                self.add(-sent, *came)
                for joined, x in zip(joins, came):
                    self.add(-sent, -joined, x)
        for c in self.into[switch]:
            joins = [self.joins(c, out, t) for out in self.out_of[switch] if out[1] != c[0]]
            for x, y in combinations(joins, 2):
                self.add(-x, -y)

    def numbered(self):
        """Pieces of one root are numbered as they arrive at the first other server."""
        for p, q in pairwise(range(len(self.root))):
            if self.root[p] == self.root[q]:
                first = next(v for v in self.servers if v != self.root[p])
                for t in range(1, self.rounds):
                    self.add(-self.holds(q, first, t), self.holds(p, first, t))

    def dimacs(self):
        lines = [f"p cnf {len(self.names)} {len(self.clauses)}"]
        return "\n".join([*lines, *(" ".join(map(str, (*c, 0))) for c in self.clauses)]) + "\n"


class Counter:
    """How many pieces have entered a set of nodes: definitions, which restrict nothing.

    For a link, {"link": [a, b]}, how many pieces have reached the servers that get them over it.
    """

    def __init__(self, formula, of):
        self.formula = formula
        inside, self.link = {*of.get("nodes", ())}, tuple(of.get("link", ()))
        self.key = *sorted(inside), "over", *self.link
        pieces = range(len(formula.root))
        if self.link:
            need(self.link in formula.links, "counters: not a link")
            ends = [(p, v) for p in pieces for v in formula.servers if v != formula.root[p]]
            self.items = [(p, [v]) for p, v in ends if self.link in formula.forced(p, v)]
        else:
            some = [v for v in formula.servers if v in inside]
            self.items = [(p, some) for p in pieces if formula.root[p] not in inside]
            need(some and inside <= formula.nodes, "counters: not a set of nodes")
        self.ways = [
            [(a, b, k) for a, b, most in formula.rows for k in range(most * step)
             if (a, b) == self.link or (not self.link and a not in inside and b in inside)]
            for step in formula.steps]
        need(self.items and (not self.link or {*map(len, self.ways)} == {1}), "counters: of none")
        formula.left -= len(self.items) ** 2 * (1 + sum(map(len, self.ways)))
        need(formula.left >= 0, "counters: too many")
        for t in reversed(range(formula.rounds)):
            self.used(len(self.items), t, 1)
            for n in reversed(range(len(self.ways[t]))):
                self.among(t, n, len(self.items), self.least(t, n))

    def least(self, t, n):
        """How many must be inside before round t, counting those of the first n channels in it."""
        return len(self.items) - sum(map(len, self.ways[t:])) + n

    def brought(self, i, t, n):
        """Channel n, counted from 1, brings piece i in round t."""
        if not self.link:
            return self.formula.sent(self.items[i - 1][0], self.ways[t][n - 1], t)
        name = "brought", self.key, i, t
        return -self.formula.either(name, self.within(i, t), -self.within(i, t + 1))

    def used(self, i, t, n):
        """It has brought one of the first i pieces."""
        if not self.link:
            return self.formula.used(self.items[i - 1][0] if i else -1, self.ways[t][n - 1], t)
        if not i:
            return -YES
        name = "brought until", self.key, i, t
        return self.formula.either(name, self.used(i - 1, t, n), self.brought(i, t, n))

    def within(self, i, t, n=0):
        """Piece i is inside before round t, or enters in it by the first n channels."""
        piece, servers = self.items[i - 1]
        either = [self.formula.holds(piece, v, t) for v in servers]
        if n:
            either = [self.within(i, t, n - 1), self.brought(i, t, n)]
        return self.formula.either(("within", self.key, i, t, n), *either)

    def among(self, t, n, i, k):
        """At least k of the first i pieces are."""
        if k <= 0 or k > i:
            return YES if k <= 0 else -YES
        name, formula = ("among", self.key, t, n, i, k), self.formula
        if name not in formula.known:
            last = self.within(i, t, n)
            fewer, less = self.among(t, n, i - 1, k), self.among(t, n, i - 1, k - 1)
            found = less if last == YES else fewer
            if last not in (YES, -YES):
                found = formula.new(*name)
                formula.add(-found, fewer, last)
                formula.add(-found, fewer, less)
                formula.add(found, -fewer)
                formula.add(found, -last, -less)
            formula.known[name] = found
        return formula.known[name]


def check(clauses, lines):
    """Checks that LRAT lines derive the empty clause by unit propagation; returns their number."""
    known, last, steps = dict(enumerate(clauses, 1)), len(clauses), 0
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words[1:2] == ["d"]:
            for name in map(int, words[2:-1]):
                known.pop(name, None)
            continue
        here, numbers = f"line {number}: ", [*map(int, words)]
        end = numbers.index(0)
        name, clause, hints = numbers[0], numbers[1:end], numbers[end + 1:-1]
        need(name > last and numbers[-1] == 0, here + "its number, or its end")
        true, open_, last = {-x for x in clause}, True, name
        for hint in hints:
            need(hint in known, here + f"no clause {hint}")
            left = [x for x in known[hint] if -x not in true]
            need(open_ and len(left) < 2, here + f"clause {hint} leaves {len(left)} literals")
            true.update(left)
            open_ = bool(left)
        need(not open_, here + "its clause does not follow")
        known[name], steps = tuple(clause), steps + 1
        if not clause:
            return steps
    raise Wrong("it does not derive the empty clause")


def packed(refutation):
    """The bytes of a refutation's proof, in xz."""
    return base64.b64decode(refutation["lrat_xz"], validate=True)


def unpacked(data):
    """The text of a proof, from xz."""
    reader = lzma.LZMADecompressor(memlimit=1 << 30)
    text = reader.decompress(data, LARGEST * 8)
    need(reader.eof, "proof: too large, or cut off")
    return text


def proof_lines(refutation):
    """The lines of its proof."""
    text = unpacked(packed(refutation))
    same = hashlib.sha256(text).hexdigest() == refutation["sha256"]
    need(same, "proof: another one than its sha256 says")
    return text.decode().splitlines()


def proved(network, refutation):
    """The number of a proof's steps; raises Wrong if it proves nothing."""
    return check(Formula(network, refutation).clauses, proof_lines(refutation))


def main():
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    paths, options = [x for x in sys.argv[1:] if x[:2] != "--"], {*sys.argv[1:]}
    try:
        need(0 < len(paths) < 3, (__doc__ or "").splitlines()[2].strip())
        with open(paths[0], "rb") as file:
            data = json.load(file)
        network, refutation = data["topology"], data["refutation"]
        if "--lrat" in options:
            print(unpacked(packed(refutation)).decode(), end="")
            return
        formula, proof = Formula(network, refutation), b""
        if "--dimacs" in options:
            print(formula.dimacs(), end="")
            return
        if len(paths) > 1:
            with open(paths[1], "rb") as file:
                proof = file.read()
            proof = unpacked(proof) if paths[1].endswith(".xz") else proof
    except (Wrong, RecursionError, *BROKEN) as error:
        print(f"{' '.join(paths)}: not checked: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    try:
        if len(paths) > 1:
            steps = check(formula.clauses, proof.decode().splitlines())
        else:
            steps = proved(network, refutation)
    except (Wrong, *BROKEN) as error:
        print(f"refused: {error}")
        sys.exit(1)
    print(f"proved: no {refutation['stage']} in {refutation['rounds']} rounds; {steps} steps")


if __name__ == "__main__":
    main()
