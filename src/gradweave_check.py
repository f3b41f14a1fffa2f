"""Checks a schedule, and proofs that no schedule takes less, in exact arithmetic: one file to copy.

    python gradweave_check.py FILE.json [CERTIFICATES.json] [--aggregating-switches]

Needs only Python 3.11, and shares no code with the programs that make schedules. It plays the
transfers, counting how often each contribution is in each sum, and recounts each certificate from
the network; it accepts nothing that it does not know. Why certificates prove bounds: Gradweave's
docs/concepts/certificates.md. Exit status: 0 all is accepted, 1 not all, 2 no such file.
"""
# fmt: off
import gzip, hashlib, heapq, json, re, sys
from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain, groupby, pairwise
from math import ceil, inf

STAGES = ("reduce_scatter", "all_gather")
COLUMNS = ("source", "target", "capacity", "bandwidth_bytes_per_s", "latency_s", "overhead_s")
OVERLAP, SEVERAL, PASSED = "stages overlap", "sums meet at several servers", "routes pass servers"
ADDED, UNEQUAL, FEWER = "switches add", "servers root unequal parts", "servers root fewer pieces"
STRAYED = "transfers leave the trees"
CLASSES = {  # liberties that void a bound: words for schedules that take none
    FEWER: "root {} at each server", UNEQUAL: "root equal parts at all servers",
    SEVERAL: "sum each piece at one server", OVERLAP: "finish every sum before the first copy",
    PASSED: "route through no other server", ADDED: "add at servers alone", STRAYED: "keep to {}"}
NEAR = 1e-9
BROKEN = (
    TypeError, KeyError, ValueError, IndexError, AttributeError, ArithmeticError, OSError, EOFError)


class Wrong(Exception):
    """A fault, in one line."""


def need(holds, otherwise):
    if not holds:
        raise Wrong(otherwise)


def whole(values, most, what):
    """The same values, which must be integers from 0 to below `most`."""
    need(all(type(value) is int and 0 <= value < most for value in values), f"{what}: out of range")
    return values


def exact(text):
    need(re.fullmatch("[0-9]{1,3000}(/[0-9]{1,3000})?", text), f"expected p/q, got {text!r:.40}")
    return Fraction(text)


def number(value):
    need(type(value) in (int, float), f"expected a number, got {value!r:.40}")
    return Fraction(float(value))


def of_list(values):
    need(type(values) is list, f"expected a list, got {values!r:.40}")
    return values


def holds_for(forbids, pieces=(1,), trees="the given trees", classes=CLASSES):
    """The schedules that a bound holds for, in words: those that take no forbidden liberty."""
    (count,) = {*pieces} if len({*pieces}) == 1 else (None,)
    most = {None: "the pieces claimed", 1: "a piece"}.get(count, f"at least {count} pieces")
    some = {FEWER: most, STRAYED: "shortest paths" if trees == "shortest" else "the given trees"}
    *words, last = [of.format(some.get(x)) for x, of in classes.items() if x in forbids] or [""]
    listed = f"{', '.join(words)} and {last}" if words else last
    return f"schedules that {listed}" if last else "every schedule"


def digest(*values):
    return hashlib.sha256(json.dumps(values, separators=(",", ":")).encode()).hexdigest()


def until(paid, charges):
    """The smallest T for which the sum of rate times max(0, T - idle) is the amount to be paid."""
    rate = level = time = Fraction(0)
    for idle, more in sorted(charges):
        if level + rate * (idle - time) >= paid:
            break
        level, time, rate = level + rate * (idle - time), idle, rate + more
    return time + (paid - level) / rate if paid > 0 and rate else Fraction(0)


def reached(start, arcs):
    """The nodes that can be reached from a node; arcs[a] is a set of nodes."""
    found, left = {start}, [start]
    while left:
        more = arcs[left.pop()] - found
        found, left = found | more, [*left, *more]
    return found


def arborescence(cost, root):
    """Minimum cost of a tree from a root to all; cost[a][b] of each arc (Edmonds 1967)."""
    total = 0
    while True:
        best = {b: min(row[b] for a, row in cost.items() if a != b) for b in cost if b != root}
        total, names = total + sum(best.values()), {}
        ahead = {a: {b for b in best if a != b and cost[a][b] == best[b]} for a in cost}
        back = {b: {a for a in cost if b in ahead[a]} for b in cost}
        for node in cost:  # nodes that reach each other over cheapest arcs become one
            if node not in names:
                names |= dict.fromkeys(reached(node, ahead) & reached(node, back), node)
        merged = {name: {} for name in names.values()}
        if len(merged) == len(cost):
            return total
        for a, b in ((a, b) for a in cost for b in best if names[a] != names[b]):
            x, y, less = names[a], names[b], cost[a][b] - best[b]
            merged[x][y] = min(less, merged[x].get(y, less))
        cost = merged


def carrier(least, given, wanted, allowed):
    """Minimum length that brings a block's contributions together, and the sum to all."""
    forth = {a: {b: least[a][b] for b in allowed} for a in allowed}
    back = {a: {b: least[b][a] for b in allowed} for a in allowed}
    if allowed == {*given} == {*wanted}:
        return min(arborescence(forth, r) + arborescence(back, r) for r in allowed)
    if allowed == {*given, *wanted} and 1 in (len(given), len(wanted)):
        one, ways = (given[0], forth) if len(given) == 1 else (wanted[0], back)
        return arborescence(ways, one)
    return max(forth[a][b] for a in given for b in wanted)


class Network:
    """Nodes from 0; link directions by source and target, with all their numbers exact."""

    def __init__(self, data):
        nodes, links = [*map(of_list, (data["servers"], data["switches"]))], data["links"]
        nodes = [*chain(*nodes)]
        self.size, self.servers = len(nodes), sorted(data["servers"])
        self.rank = {server: rank for rank, server in enumerate(self.servers)}
        usual = {"overhead_s": [1e-6] * len(links["source"])}
        columns = [of_list((usual | links)[name]) for name in COLUMNS]
        whole(chain(nodes, columns[0], columns[1]), self.size, "network: nodes")
        rows = sorted(zip(*columns, strict=True))
        self.ends, self.room = [row[:2] for row in rows], [row[2] for row in rows]
        self.link = {ends: k for k, ends in enumerate(self.ends)}
        numbers = [[number(row[k]) for row in rows] for k in (3, 4, 5)]
        self.rate, self.delay, self.hold = numbers
        good = len({*nodes}) == self.size and len(self.servers) > 1 and len(self.link) == len(rows)
        good &= all((b, a) in self.link and a != b for a, b in self.ends)
        good &= 0 < min(whole(self.room, 1 << 31, "capacity") + self.rate)
        need(good and 0 <= min(self.delay + self.hold), "the network is none")
        written = [[*row[:3], *map(str, more)] for row, *more in zip(rows, *numbers)]
        self.hash = digest(self.servers, sorted(data["switches"]), written)
        degree = Counter(a for a, _ in self.ends)
        relays = self.size > 2 and any(degree[s] > 1 for s in self.servers)
        switches = self.size > len(self.servers)
        self.never = {x for x, can in ((PASSED, relays), (ADDED, switches)) if not can}

    def least(self, starts, cost, back=False, through=lambda node: True):
        """[V] minimum sum of link costs from any of some nodes to each, or back (Dijkstra)."""
        arcs = defaultdict(list)
        for k, ends in enumerate(self.ends):
            arcs[ends[back]].append((ends[not back], cost[k]))
        found, queue = [inf] * self.size, [(0, node) for node in starts]
        for node in starts:
            found[node] = 0
        while queue:
            away, node = heapq.heappop(queue)
            if away == found[node] and (node in starts or through(node)):
                for end, more in arcs[node]:
                    if away + more < found[end]:
                        found[end] = away + more
                        heapq.heappush(queue, (found[end], end))
        return found

    def hops(self, starts, back=False):
        """[V] minimum number of transfers from any of some servers to each, or back."""
        return self.least({*starts}, [ends[not back] in self.rank for ends in self.ends], back)

    @cached_property
    def messages(self):
        return Messages(self)

    def idle(self, given, wanted, through=lambda node: True):
        """[L] seconds for which a link is idle: messages bring bytes there, and take them on."""
        rows = [*zip(self.ends, self.delay, self.hold)]
        before, after = ([d + hold * (x[k] in self.rank) for x, d, hold in rows] for k in (1, 0))
        ahead = self.least({*given}, before, False, through)
        behind = self.least({*wanted}, after, True, through)
        return [ahead[a] + delay + behind[b] + hold for (a, b), delay, hold in rows]


class Asked:
    """The task in blocks: (size, contributors, destinations, possible relays, ready at)."""

    def __init__(self, name, data, net):
        self.name, self.demand, all_ = name, name == "demand", tuple(net.servers)
        given = data is not None
        need(self.demand == given, "demand: expected one with the collective demand alone")
        need(name in ("demand", "all_reduce", *STAGES), "collective: unknown")
        self.hash, sets = None, [(all_, all_)] if name == "all_reduce" else [
            (all_, (s,)) if name == "reduce_scatter" else ((s,), all_) for s in all_]
        self.blocks = [(Fraction(1, len(sets)), *pair, frozenset(all_), 0) for pair in sets]
        if self.demand:
            rows, allowed, jobs = data["blocks"], defaultdict(set), of_list(data["jobs"])
            job = whole(of_list(rows["job"]), len(jobs), "job")
            size = whole(of_list(rows["bytes"]), 1 << 60, "bytes")
            lists = [data.get("relays", [])], rows["contributors"], rows["destinations"]
            (relays,), *sets = ([tuple(sorted(whole(of_list(s), net.size, "demand: a server")))
                                 for s in of_list(some)] for some in lists)
            for j, amount, a, b in zip(job, size, *sets, strict=True):
                need(amount and a and b and (a != b or len(a) > 1), "demand: a block with nothing")
                allowed[j].update(relays, a, b)
            for some in (relays, *sets[0], *sets[1]):
                need(len({*some}) == len(some) and {*some} <= {*net.rank}, "demand: not servers")
            ready = [*map(number, of_list(data.get("ready_at_s", [])))] or [Fraction(0)] * len(jobs)
            need(len(ready) == len(jobs) and min(ready) >= 0, "demand: ready_at_s")
            rows = zip(job, size, *sets)
            self.blocks = [(n, a, b, frozenset(allowed[j]), ready[j]) for j, n, a, b in rows]
            self.hash = digest(job, size, *sets, relays, [*map(str, ready)])


class Plan:
    """A schedule that was found valid: transfers by round, and the liberties that they take."""

    def __init__(self, data, net, asked, adding):
        moved, root, demand, blocks = data["transfers"], data["root"], asked.demand, asked.blocks
        need(data["format"] == "gradweave-schedule", "format")
        version, count = whole([data["version"], data["pieces"]], 1 << 63, "version, pieces")
        whole(of_list(root), net.size, "root")
        need(version in (1, 2, 3), "another version")
        need(count == len(root) > 0 and {*root} <= {*net.rank}, "pieces, root: do not fit")
        ranks = [net.rank[r] * (len(blocks) > 1) for r in root]
        block = whole(of_list(data["block"]), len(blocks), "block") if demand else ranks
        steps = [b - a for a, b in pairwise([-1, *block, len(blocks)])]
        ascends = steps[0] == steps[-1] == 1 and {*steps} <= {0, 1}
        need(ascends or not demand, "block: not ascending, or not all")
        even, shares = {"numerators": [1] * len(root), "denominator": len(root)}, data.get("shares")
        shares, total = even if shares is None else shares, Counter()
        weight = whole(of_list(shares["numerators"]), 1 << 63, "shares")
        (all_,) = whole([shares["denominator"]], 1 << 127, "shares")
        need(sum(weight) == all_ > 0, "shares: their sum is not the denominator")
        for b, x in zip(block, weight, strict=True):
            total[b * demand] += x
        share = [Fraction(x, total[b * demand]) for b, x in zip(block, weight)]
        full = [sum(1 << net.rank[s] for s in blocks[b][1]) for b in block]
        complete = [{*blocks[b][1]} if len(blocks[b][1]) == 1 else set() for b in block]
        names = ("round", "piece", "source", "target", "op", "route")
        columns = [of_list(moved[x]) for x in names]
        for column, most in zip(columns, (1 << 26, len(root), net.size, net.size)):
            whole(column, most, "round, piece, source, target")
        rows = sorted(zip(*columns, strict=True), key=lambda row: row[0])
        (rounds,) = whole([data["rounds"]], 1 << 63, "rounds")
        need(rounds == (rows[-1][0] + 1 if rows else 0), "rounds: not the transfers'")
        held, self.transfers, passed, added = {}, [], False, False

        def holds(node, piece):
            return held.get((node, piece)) or (1 << net.rank[node] if node in net.rank else 0, 0)

        for at, together in groupby(rows, key=lambda row: row[0]):
            load, writes, copied = Counter(), defaultdict(list), set()
            for row in together:
                _, piece, source, target, op, route = row
                here = f"round {at}: piece {piece} from {source} to {target}: "
                used = [net.link.get(x) for x in pairwise(whole(of_list(route), net.size, here))]
                need(used and [source, target] == [route[0], route[-1]], here + "its route's ends")
                need(len({*route}) == len(route), here + "its route passes a node twice")
                need(None not in used, here + "its route takes a link that is not there")
                servers = {x for x in route if x in net.rank}
                need(servers <= blocks[block[piece]][3], here + "a server has no part in it")
                inner = len(servers - {source, target})
                need(adding or len(servers) - inner == 2, here + "switches do not add")
                need(op in ("reduce", "copy"), here + "neither reduce nor copy")
                passed, added = passed or inner > 0, added or len(servers) - inner < 2
                self.transfers.append((row, used))
                load.update(used)
                writes[target, piece].append(holds(source, piece))
                copied |= {(target, piece)} if op == "copy" else set()
            for k, count in load.items():
                need(count <= net.room[k], f"round {at}: link {net.ends[k]} carries {count}")
            for cell, sums in writes.items():
                need(cell not in copied or len(sums) == 1, f"round {at}: a copy and more to {cell}")
                once, twice = sums.pop() if cell in copied else holds(*cell)
                for more, often in sums:
                    once, twice = once | more, twice | often | once & more
                held[cell] = once, twice
                if cell not in copied and (once, twice) == (full[cell[1]], 0):
                    complete[cell[1]].add(cell[0])
        for p, b in enumerate(block):
            for server in blocks[b][2]:
                good = holds(server, p) == (full[p], 0)
                need(good, f"end: server {server} has not each contribution to piece {p} once")
        reduces, copies = ([row[0] for row in rows if row[4] == op] for op in ("reduce", "copy"))
        lone = all(len(x) == 1 and (demand or x == {r}) for r, x in zip(root, complete))
        rooted = [sum(share[p] for p, r in enumerate(root) if r == s) for s in net.servers]
        taken = {OVERLAP: min(copies, default=inf) <= max(reduces, default=-1), SEVERAL: not lone,
                 PASSED: passed, ADDED: added, UNEQUAL: len({*rooted}) > 1}
        self.rounds, self.liberties = rounds, {x for x in taken if taken[x]}
        self.used = {(root[row[1]], net.ends[k]) for row, used in self.transfers for k in used}
        count = Counter(block if demand else root)
        self.pieces = [count[b] for b in (range(len(blocks)) if demand else net.servers)]
        self.begin = [float(blocks[b][4]) for b in block]
        self.size = [share[p] * (blocks[b][0] if demand else 1) for p, b in enumerate(block)]

    def seconds(self, net, unit, ready):
        """Its time in the event model, in floats: a transfer waits for its data and its links."""
        load = Counter((row[0], k) for row, used in self.transfers for k in used)
        rates = [min(net.rate[k] / load[row[0], k] for k in used) for row, used in self.transfers]
        there, claims, slowest = defaultdict(float), defaultdict(list), defaultdict(lambda: inf)
        for (_, used), rate in zip(self.transfers, rates):
            slowest |= {k: min(slowest[k], rate) for k in used}
        rows = [(row, used, float(rate)) for (row, used), rate in zip(self.transfers, rates)]
        for _, together in groupby(rows, key=lambda one: one[0][0]):
            ended = []
            for (_, piece, source, target, *_), used, rate in together:
                own, busy = float(ready[net.rank.get(source, 0)]), True
                begin = max(there[source, piece], own, self.begin[piece])
                while busy:
                    busy = [[c for c in claims[k] if c[0] > begin] for k in used]
                    busy = [x for x, k in zip(busy, used)
                            if sum(r for _, r in x) + rate * (1 - NEAR) > float(net.rate[k])]
                    begin = min(map(min, busy))[0] if busy else begin
                free = begin + float(max(net.hold[k] for k in used))
                free += float(self.size[piece] * unit) / rate
                for k in used:  # of those that fit at once, and one more, none else ends later
                    most = 1 + int(net.rate[k] / slowest[k])
                    claims[k] = sorted([*claims[k], (free, rate)])[-most:]
                ended.append((target, piece, free + float(sum(net.delay[k] for k in used))))
            for target, piece, end in ended:
                there[target, piece] = max(there[target, piece], end)
        return max(there.values(), default=0.0)


class Messages:
    """Times of messages without bytes, and how many servers can have heard of how many by when."""

    def __init__(self, net):
        servers, slowest = net.servers, min(rate / room for rate, room in zip(net.rate, net.room))
        self.hold, ports = [dict.fromkeys(servers, inf) for _ in (0, 1)], [Counter(), Counter()]
        for ends, rate, hold in zip(net.ends, net.rate, net.hold):
            for side, node in enumerate(ends):
                ports[side][node] += rate / slowest  # transfers that fit at the same time
                self.hold[side][node] = min(hold, self.hold[side].get(node, inf))
        self.servers, self.ports = servers, ports
        self.reached, self.known = cache(self.reached), cache(self.known)
        every = sorted({*net.hold})  # beyond four levels, others are rounded down to one of these
        levels = sorted({every[(len(every) - 1) * k // 3] for k in range(4)})
        ways = [[d if bisect(levels, hold) <= n else inf for d, hold in zip(net.delay, net.hold)]
                for n in range(1, 1 + len(levels))]  # over links held at most that long
        rows = {s: [net.least({s}, way) for way in ways] for s in servers}
        self.far = {s: row[-1] for s, row in rows.items()}
        self.along = {s: [min(hold + row[v] for hold, row in zip(levels, rows[s]))
                          for v in range(net.size)] for s in servers}
        near = min(self.far[a][b] for a in servers for b in servers if a != b)
        hold, most = min(net.hold), max(x[s] for x in ports for s in servers)
        self.spread, queue = [Fraction(0)], [(near + hold, Fraction(0), 1)]
        for _ in servers[1:]:  # if all were as near as any: when one more server can know of it
            time, since, k = heapq.heappop(queue)
            later = since + near + hold * max(1, (k + 1) / most)
            heapq.heappush(queue, (later, since, k + 1))
            heapq.heappush(queue, (time + near + hold, time, 1))
            self.spread.append(time)

    def between(self, a, b, leaving=True):
        """Minimum seconds from one server to another; the other way if not leaving."""
        a, b = (a, b) if leaving else (b, a)
        ends = self.far[a][b] + max(self.hold[0][a], self.hold[1][b])
        return max(ends, self.along[a][b]) if a != b else Fraction(0)

    def reached(self, some, leaving):
        """For each server, ascending: seconds to each of some others, or from them."""
        return {s: sorted(self.between(s, other, leaving) for other in some) for s in self.servers}

    def known(self, time, x, some, leaving):
        """How many of some servers one reaches before a time; not leaving, can have heard of.

        Its messages hold its links in turn. The k-th message, counted from the end, left its sender
        while k were still to come: it had no more than without distances, nor than is near enough.
        """
        reached, ports = self.reached(some, leaving), self.ports[not leaving][x]
        near, known, hold = bisect_left(reached[x], time), int(x in some), self.hold[not leaving][x]
        left = {s: time - hold - (self.far[x][s] if leaving else self.far[s][x])
                for s in self.servers if s != x}
        left = {s: t for s, t in left.items() if t > reached[s][0]}
        latest = max(left.values(), default=0)
        for k in range(1, len(some) + 1):
            less = hold * (max(1, k / ports) - 1)
            until = [(s, t - less if leaving else min(t, latest - less)) for s, t in left.items()]
            most = max((min(bisect_left(self.spread, t), bisect_left(reached[s], t))
                        for s, t in until if t > reached[s][0]), default=0)
            known += most
            if known >= near or not most:
                break
        return min(known, near)


class Proof:
    """A recounted certificate: schedules that avoid what it `forbids` take at least its `least`."""

    def __init__(self, data, net, asked):
        self.net, self.asked, self.name, count = net, asked, asked.name, len(net.servers)
        claim, steps = data["claim"], of_list(data["proof"])
        (version,) = whole([data["version"]], 2, "version")
        need((data["format"], version) == ("gradweave-certificate", 1), "another format")
        need(data["network"] == net.hash, "it is of another network")
        same = data.get("demand") == asked.hash and claim["collective"] == asked.name
        need(same, "it is of another collective, or demand")
        self.unit, overlap = claim["unit"], claim.get("overlap") is True
        self.rounds, self.bytes = self.unit == "rounds", exact(claim.get("bytes", "0"))
        self.ready = [*map(exact, of_list(claim.get("ready_at_s", ["0"] * count)))]
        number = len(asked.blocks) if asked.demand else count
        self.pieces = whole(of_list(claim.get("pieces", [1] * number)), 1 << 60, "pieces")
        self.since = exact(claim.get("since_s", "0"))  # of jobs that begin no sooner
        need((len(self.ready), len(self.pieces)) == (count, number), "claim: not one for each")
        self.amount = self.pieces if self.rounds else [self.bytes / count] * count
        both = self.name == "all_reduce" and self.rounds and not overlap
        self.forbids = {OVERLAP, SEVERAL} if both else set()
        self.trees = claim.get("trees")  # that pieces take, of schedules that the bound holds for
        self.allowed = None if self.trees is None else self.along_trees()
        self.forbids |= set() if self.trees is None else {STRAYED}
        stages = STAGES if both else (self.name,)
        need([step["stage"] for step in steps] == [*stages], "proof: not of each stage")
        need(self.unit in ("rounds", "seconds"), "claim: another unit")
        kinds = KINDS["demand" if asked.demand else self.unit]
        need({step["kind"] for step in steps} <= {*kinds}, "not checked: of an unknown kind")
        self.least = sum((Fraction(kinds[step["kind"]](self, step)) for step in steps), Fraction(0))
        need(self.least >= exact(claim["least"]), f"it proves {self.least} alone")
        self.forbids -= net.never
        if "holds_unless" in claim:  # it may claim a narrower class
            claimed = {*of_list(claim["holds_unless"])}
            less = f"it holds for {self.holds_for()} alone"
            need(self.forbids <= claimed <= {*CLASSES}, less)
            self.forbids = claimed

    def holds_for(self):
        """The schedules that the claim holds for."""
        return holds_for(self.forbids, self.pieces, self.trees)

    def server(self, step, name="server"):
        need(whole([step[name]], self.net.size, name)[0] in self.net.rank, f"{name}: no server")
        return step[name]

    def inside(self, step, servers="servers", switches="switches"):
        rank, nodes = self.net.rank, [*of_list(step[servers]), *of_list(step[switches])]
        nodes = {*whole(nodes, self.net.size, "a set")}
        good = {*step[servers]} <= {*rank} and not {*step[switches]} & {*rank}
        need(good and 0 < len({*step[servers]}) < len(rank), "a set: other nodes, or all servers")
        return nodes

    def turned(self, back):
        """Link directions, or all of them reversed."""
        return [(k, b, a) if back else (k, a, b) for k, (a, b) in enumerate(self.net.ends)]

    def along_trees(self):
        """{(root, link direction)}: links on shortest paths for "shortest", or of given trees."""
        need(self.rounds and self.name in STAGES, "trees: of rounds of one stage alone")
        found, back = set(), self.name == "reduce_scatter"
        self.ahead = {(a, b): k for k, a, b in self.turned(back)}
        for rank, root in enumerate(self.net.servers):
            away = self.net.least({root}, [1] * len(self.net.ends), back)
            if self.trees != "shortest":
                nodes = of_list(of_list(self.trees)[rank])
                need(all(type(node) is int for node in nodes), "trees: not of nodes")
            for k, a, b in self.turned(back):
                short = away[b] == away[a] + 1
                if short if self.trees == "shortest" else self.trees[rank][b] == a:
                    found.add((root, self.net.ends[k]))
        return found

    def sum(self, servers):
        """The pieces, or bytes, that some servers root."""
        self.forbids |= {FEWER} if self.rounds else set()
        return sum(self.amount[self.net.rank[s]] for s in servers)

    def crossing(self, amount, links, since=0):
        """The time or rounds until an amount has crossed some links."""
        if self.rounds:
            return ceil(Fraction(amount, sum(self.net.room[k] for k in links)))
        idle = self.net.idle(self.net.rank, self.net.rank)
        return until(amount, [(max(idle[k], since), self.net.rate[k]) for k in links])

    def cut(self, step):
        """Pieces that must leave a set, or enter it."""
        nodes, leaving, everyone = self.inside(step), step["leaving"] is True, {*self.net.servers}
        links = [k for k, a, b in self.turned(not leaving) if a in nodes and b not in nodes]
        within, rest = everyone & nodes, everyone - nodes
        if step["stage"] == "all_reduce":  # as sums or as copies, all of it
            since = max(self.ready[self.net.rank[s]] for s in (within if leaving else rest))
            return self.crossing(self.sum(everyone), links, since)
        self.forbids |= set() if self.rounds else {UNEQUAL}
        rooted = within if leaving == (step["stage"] == "all_gather") else rest
        return self.crossing(self.sum(rooted), links)

    def groups(self, step):
        """Transfers that leave all of some groups of servers, or enter them."""
        groups, both = [*map(of_list, of_list(step["groups"]))], step["stage"] == "all_reduce"
        servers, _ = {*self.net.servers}, whole(chain(*groups), self.net.size, "groups")
        of = {node: g for g, nodes in enumerate(groups) for node in nodes}
        good = len(of) == sum(map(len, groups)) and servers <= {*of}
        need(good and {of[s] for s in servers} == {*of.values()}, "groups: not of all servers")
        self.forbids |= {ADDED} if self.rounds or both else {ADDED, UNEQUAL}
        ends = self.turned(step["leaving"] is not True)
        links = [k for k, a, b in ends if a in of and of[a] != of.get(b)]
        return self.crossing((len({*of.values()}) - 1) * (1 + both) * self.sum(servers), links)

    def depth(self, step):
        """Consecutive transfers from one server to another, which some contribution must make."""
        self.forbids.add(PASSED)
        ends = [self.server(step, "source"), self.server(step, "target")]
        rooted = step["stage"] == "all_reduce" or min(self.sum([s]) for s in ends) > 0
        need(len({*ends}) == 2 and rooted, "depth: not two servers with pieces")
        return self.net.hops(ends[:1])[ends[1]]

    def growth(self, step):
        """Rounds to spread one server's contribution to all, or reverse, C messages per round."""
        net, leaving, adding = self.net, step["leaving"] is True, step["switches"] is True
        need(step["stage"] != STAGES[not leaving], "growth: the other way")
        self.forbids |= set() if adding else {ADDED}
        room, known, rounds = Counter(), 1, 0
        for k, a, _ in self.turned(not leaving):
            room[a] += net.room[k] * (adding or a in net.rank)
        while known < len(net.servers):  # each informed server tells C others, or the reverse
            known, rounds = known * (1 + max(room.values())), rounds + 1
        return rounds

    def late_entry(self, step):
        """Pieces that must enter a set some rounds before the end, to spread in it."""
        net, inside, back = self.net, self.inside(step), self.spread(step)
        first, last = whole([step["first_rounds"], step["last_rounds"]], net.size + 8, "late_entry")
        outside = {*net.servers} - inside
        arcs = [(a, b, net.room[k]) for k, a, b in self.turned(back)]
        away, far = net.hops(inside & {*net.servers}, not back), net.hops(outside, back)
        left = self.sum(s for s in outside if away[s] > first)
        left -= self.late(step, arcs, far, last, back) if last else 0
        room = sum(c for a, b, c in arcs if a not in inside and b in inside)
        return first + last + ceil(Fraction(left, room)) if left > 0 else 0

    def stage(self, step):
        need(step["stage"] in [*STAGES], "of one stage alone")
        return step["stage"]

    def spread(self, step):
        """The stage, in which pieces go from server to server, and whether it is reversed."""
        self.forbids |= {PASSED, ADDED}
        return self.stage(step) == "reduce_scatter"

    def late(self, step, arcs, far, last, back):
        """Pieces that can enter in the last rounds and still reach all of some servers inside."""
        nodes, reach = self.inside(step, "reach", "reach_switches"), {*of_list(step["reach"])}
        need(reach <= {*step["servers"]}, "late_entry: reach is not inside")
        takes, gives, room = Counter(), Counter(), 0
        for a, b, c in arcs:
            takes[b], gives[a] = takes[b] + c, gives[a] + c
            room += c * (b in nodes and a not in nodes)
        late, most = (
            min(max(0, last - far[x] + 1) * takes[x] for x in reach), max(gives[x] for x in reach))
        depth = self.net.hops({*self.net.servers} - nodes, back)
        rounds = last + 1 - min(far[x] for x in reach)
        while late:
            total = 0
            for k in range(1, rounds + 1):
                inner = min(sum(gives[x] for x in reach if depth[x] < k), total * most)
                total += min(sum(min(takes[x], late) for x in reach if depth[x] <= k), room + inner)
            if total >= late * len(reach):
                break
            late = total // len(reach)
        return late

    def closing_cut(self, step):
        """Nested sets around a server that pieces cannot enter in time."""
        net, back, room = self.net, self.spread(step), 0
        sets = [self.inside({"servers": s, "switches": []}) for s in of_list(step["servers"])]
        switches = [{*whole(of_list(x), net.size, "a set")} for x in of_list(step["switches"])]
        nested = all(a >= b for a, b in pairwise(sets))
        need(nested and self.server(step, "target") in sets[-1], "closing_cut: sets not nested")
        for before, after, through in zip(sets[:-1], sets[1:], switches, strict=True):
            for k, a, b in self.turned(back):
                out = a not in (before if a in net.rank else through)
                room += net.room[k] * (out and b in (after if b in net.rank else through))
        return len(switches) + 1 if self.sum({*net.servers} - sets[0]) > room else 0

    def refutation(self, step):
        """A proof that the formula of every schedule of this few rounds has no solution."""
        try:
            import gradweave_refute as other
        except ImportError:
            raise Wrong("not checked: gradweave_refute.py is not beside this file") from None
        self.spread(step)
        self.forbids.add(FEWER)
        net, (source, target) = self.net, zip(*self.net.ends)
        nodes = {"servers": net.servers, "switches": sorted({*range(net.size)} - {*net.rank})}
        links = {"source": source, "target": target, "capacity": net.room}
        asked = {key: step[key] for key in ("rounds", "counters", "sha256", "lrat_xz")}
        asked |= {"stage": step["stage"], "pieces": self.pieces, "trees": self.trees or "free"}
        try:
            other.proved(nodes | {"links": links}, asked)
        except (other.Wrong, *other.BROKEN) as error:
            raise Wrong(f"refutation: {error}") from None
        return step["rounds"] + 1

    def load(self, step):
        """Transfers of given trees over one link, each to a server from the server before it."""
        need(self.allowed is not None and self.trees != "shortest", "load: of given trees alone")
        self.forbids |= {ADDED, FEWER}
        net, link, load = self.net, (step["source"], step["target"]), 0
        for rank, root in enumerate(net.servers):
            for node in {*net.servers} - {root}:
                path = []
                while not path or node not in net.rank:
                    path.append((self.trees[rank][node], node))
                    node = path[-1][0]
                    need(len(path) < net.size and path[-1] in self.ahead, "load: a tree is none")
                load += self.pieces[rank] * (link in path)
        return ceil(Fraction(load, net.room[self.ahead[link]]))

    def lengths(self, step):
        """Lengths of links: the minimum use of them by blocks, over what the links offer."""
        net, used = self.net, Fraction(0)
        cost = whole(of_list(step["lengths"]), 1 << 64, "lengths")
        need(len(cost) == len(net.ends), "lengths: not one for each link direction")
        blocks = [(*x, n) for x, n in zip(self.asked.blocks, self.pieces) if x[4] >= self.since]
        need(blocks, "lengths: of no block")
        several = any(len(given) > 1 < len(wanted) for _, given, wanted, *_ in blocks)
        self.forbids |= {ADDED, PASSED} | ({SEVERAL} if several else set())
        self.forbids |= {UNEQUAL} if self.name in STAGES else {FEWER} if self.rounds else set()
        idle, known = [inf] * len(cost), {}
        for allowed in {block[3] for block in blocks}:
            def through(node, some=allowed):
                return node not in net.rank or node in some
            paths = {s: net.least({s}, cost, through=through) for s in allowed}
            some = [block for block in blocks if block[3] == allowed]
            ends = [{s for block in some for s in block[k]} for k in (1, 2)]
            idle = [*map(min, idle, net.idle(*ends, through))]
            for size, given, wanted, *_, count in some:
                key = given, wanted, allowed
                known[key] = known[key] if key in known else carrier(paths, *key)
                amount = size if self.asked.demand else size * self.bytes
                used += known[key] * (count if self.rounds else amount)
        offered = [c * x for c, x in zip(cost, net.room if self.rounds else net.rate)]
        if self.rounds:
            return ceil(used / sum(offered))
        return self.since + until(used, [x for x in zip(idle, offered) if x[0] < inf])

    def crossings(self, step):
        """Priced sets, each from a time on: sums enter it to a root inside, or copies leave it."""
        need(self.name == "all_reduce", "crossings: of an all-reduce alone")
        self.forbids |= {SEVERAL, ADDED}
        net, ready, paid = self.net, dict(zip(self.net.servers, self.ready)), Counter()
        last, toll, sets = max(self.ready), Counter(), []
        for x in of_list(step["tolls"]):
            good = type(x["price"]) is int and abs(x["price"]) < 1 << 64
            need(good and x["stage"] in STAGES and x["switch"] not in net.rank, "a toll")
            toll[x["stage"], x["switch"]] += x["price"]
        for x in of_list(step["sets"]):
            stage, nodes, since = self.stage(x), self.inside(x), exact(x["since_s"])
            (price,), copies = whole([x["price"]], 1 << 64, "a price"), stage == "all_gather"
            crossed = {k for k, a, b in self.turned(not copies) if a in nodes and b not in nodes}
            sets.append((stage, crossed, since, price))
            if since <= (last if copies else max(ready[s] for s in {*ready} - nodes)):
                paid.update({s: price for s in nodes & {*ready}})
        idle, charges, before = net.idle(net.rank, net.rank), [], [0] * len(net.ends)
        for time in sorted({Fraction(0), last, *(since for _, _, since, _ in sets)}):
            for k, (a, b) in enumerate(net.ends):  # what a byte pays on a link from then on
                pays = [0]
                for stage in STAGES if time >= last else STAGES[:1]:  # no copies before all are
                    own = [x for of, crossed, since, x in sets if of == stage and since <= time
                           and k in crossed]
                    pays.append(sum(own) + toll[stage, a] - toll[stage, b])
                charges.append((max(idle[k], time), (max(pays) - before[k]) * net.rate[k]))
                before[k] = max(pays)
        return until(min(paid[s] for s in net.servers) * self.bytes, charges)

    def reach(self, step):
        """When a server's contribution has reached others, or others' contributions reached it."""
        net, x, leaving = self.net, self.server(step), step["leaving"] is True
        (block,) = whole([step["block"]], len(self.asked.blocks), "reach: a block")
        size, given, wanted, _, ready = self.asked.blocks[block]
        own, others = (given, wanted) if leaving else (wanted, given)
        need(x in own and {*others} != {x} and not self.rounds, "reach: nothing goes that way")
        self.forbids |= {UNEQUAL} if self.name in STAGES else set()
        size *= 1 if self.asked.demand else self.bytes
        links = [k for k, a, _ in self.turned(not leaving) if a == x]
        taken, hold = size / sum(net.rate[k] for k in links), min(net.hold[k] for k in links)
        away = net.least({x}, net.delay, not leaving)
        time, beyond = exact(step["seconds"]), exact(step["beyond_s"])
        if time:
            self.forbids.add(ADDED)
            known, between = self.net.messages.known, self.net.messages.between
            some = frozenset(s for s in others if between(x, s, leaving) >= beyond)
            few = some and known(time, x, some, leaving) < len(some)
            need(few, "reach: there is time enough")
        ready = self.ready[net.rank[x]] if leaving and self.name == "all_reduce" else ready
        return ready + max(time + max(0, taken - hold), hold + taken + max(away[s] for s in others))

    def relay(self, step):
        """Two servers that cannot exchange directly: two messages in a row, or a detour."""
        need(self.name == "all_reduce", "relay: of an all-reduce alone")
        self.forbids.add(ADDED)
        net, x, m = self.net, self.server(step), self.net.messages.between
        rooms = [sum(net.room[k] for k, a, _ in self.turned(back) if a == x) for back in (0, 1)]

        def row(a, b):
            rest = [c for c in net.servers if c not in (a, b)]
            first = min(m(c, a) for c in net.servers if c != a)
            return min([first + m(a, b), *(m(a, c) + m(c, b) for c in rest)])

        pairs = sorted((min(row(x, b), row(b, x)) for b in net.servers if b != x), reverse=True)
        return [*pairs, 0][min(*rooms, len(pairs))] if len(pairs) > 1 else 0

    def meeting(self, step):
        """A complete sum is sent on, or servers that exchange parts have all of them together."""
        net, m, known = self.net, self.net.messages.between, self.net.messages.known
        everyone, beyond = {*net.servers}, map(of_list, of_list(step["beyond_s"]))
        beyond = dict(zip(net.servers, beyond, strict=True))
        need(self.name == "all_reduce" and len(everyone) > 2, "meeting: of an all-reduce alone")
        self.forbids.add(ADDED)
        time = exact(step["seconds"])
        for x in net.servers:
            onward, others = min(m(x, b) for b in everyone - {x}), everyone - {x}
            sets = [frozenset(s for s in everyone if m(s, x) >= t)
                    for t in (Fraction(0), *map(exact, beyond[x]))]
            need(all(sets), "meeting: a set is empty")
            sent_on = all(known(time - onward, x, some, False) >= len(some) for some in sets)
            until = {a: time - (m(a, x) if a != x else onward) for a in everyone}
            near = {a: {s for s in everyone if m(s, a) < until[a]} for a in everyone}
            partners = min(sum(r for r, (_, b) in zip(net.room, net.ends) if b == x), len(others))
            met = {*others} if {*chain(*near.values())} == everyone else set()
            if partners == 1:
                met = {a for a in others if near[a] | near[x] == everyone}
            for some in sets:
                have = {a: known(until[a], a, some, False) for a in everyone}
                most = sum(sorted(have[a] for a in others)[-partners:])
                met = {a for a in met
                       if have[x] + (have[a] if partners == 1 else most) >= len(some)}
            need(not sent_on and not met, "meeting: there is time enough")
        return time

    def slots(self, step):
        """Prices per link and time slot: what sums and copies must pay over what links charge."""
        net, length = self.net, exact(step["length_s"])
        (count,) = whole([step["slots"]], 1001, "slots")
        stages = STAGES if self.name == "all_reduce" else (self.stage(step),)
        self.forbids |= {SEVERAL, ADDED, PASSED} | ({UNEQUAL} if len(stages) == 1 else set())
        routed = net.least({*net.servers}, net.delay, through=lambda v: v not in net.rank)
        need(count > 0 < length, "slots: none")
        late = [min(count, int((routed[a] + d + h) * count / length)) if b in net.rank else 0
                for (a, b), d, h in zip(net.ends, net.delay, net.hold)]
        price, toll, sums = defaultdict(int), defaultdict(int), Counter()
        for s, t, k, server, x in of_list(step["prices"]):
            whole([s, t, k, server, x], 1 << 64, "a price")
            price[s, t, k, server] += x
            sums[s, t, k] += x
        for s, t, node, x in of_list(step["tolls"]):
            whole([s, t, node], 1 << 64, "a toll")
            good = type(x) is int and abs(x) < 1 << 64 and node < net.size
            need(good and node not in net.rank, "a toll")
            toll[s, t, node] += x
        paid, dearest = defaultdict(int), Counter()
        for s, stage in enumerate(stages):
            back, arcs = stage == "all_gather", self.turned(stage == "all_gather")
            for k, a, b in arcs:
                for t in range(count - late[k]):
                    cost = sums[s, t, k] + toll[s, t + late[k], b] - toll[s, t, a]
                    at = (count - 1 - late[k] - t if back else t), k
                    dearest[at] = max(dearest[at], cost)
            for server in net.servers:
                least = [[inf] * net.size for _ in range(count)]
                least[0][server] = 0
                for t, here in enumerate(least):
                    for x in net.servers if t else ():
                        here[x] = min(here[x], least[t - 1][x])
                    changed = True
                    while changed:
                        changed = False
                        for k, a, b in arcs:
                            cost = here[a] + price[s, t, k, server]
                            if late[k] == 0 and cost < here[b]:
                                here[b], changed = cost, True
                    for k, a, b in arcs:
                        if 0 < late[k] < count - t:
                            then = least[t + late[k]]
                            then[b] = min(then[b], here[a] + price[s, t, k, server])
                for t, here in enumerate(least):
                    for root in net.servers:
                        paid[count - 1 - t if back else t, root] += here[root]
        best = [min(paid[t, root] for t in range(count)) for root in net.servers]
        due = min(best) if len(stages) == 2 else sum(best) / Fraction(len(best))
        charged = sum(net.rate[k] * x for (_, k), x in dearest.items())
        if due == inf:
            return length
        return min(length, self.bytes * due * count / charged) if charged else 0

    def root(self, step):
        """A message from every server to some root, one from there to every server, or both."""
        net, both = self.net, self.name == "all_reduce"
        ways = [back for back, stage in zip((True, False), STAGES) if both or stage == self.name]
        self.forbids |= {SEVERAL, ADDED} if both else set()
        away = {r: [net.least({r}, net.delay, back) for back in ways] for r in net.servers}
        far = [sum(max(row[s] for s in net.servers) for row in rows) for rows in away.values()]
        return min(far) + len(ways) * min(net.hold)

    def limits(self, plan):
        """Why it does not apply to a schedule; empty if it does."""
        few = FEWER in self.forbids and any(a < b for a, b in zip(plan.pieces, self.pieces))
        strayed = self.allowed is not None and not plan.used <= self.allowed
        return sorted(self.forbids & plan.liberties) + [FEWER] * few + [STRAYED] * strayed

    def of(self, plan):
        """Whether it applies to a schedule, and its statement."""
        if reasons := self.limits(plan):
            return False, f"but not of this schedule: {' and '.join(reasons)}"
        unit = 1 if self.asked.demand else self.bytes
        time = plan.rounds if self.rounds else plan.seconds(self.net, unit, self.ready)
        gap = float(time / self.least - 1) if self.least else inf
        need(gap > -NEAR, "it proves more than the schedule takes")
        taken = f"{time} {self.unit}" if self.rounds else f"{time:.9g} s in the event model"
        among = " among such schedules" * bool(self.forbids)
        near = f"optimal in {self.unit}{among}" if gap < NEAR else f"within {100 * gap:.3g} %"
        return True, f"the schedule takes {taken}: {near}"


KINDS = {
    "rounds": (Proof.cut, Proof.groups, Proof.depth, Proof.growth, Proof.late_entry,
               Proof.closing_cut, Proof.load, Proof.refutation),
    "seconds": (Proof.cut, Proof.groups, Proof.lengths, Proof.crossings, Proof.slots, Proof.reach,
                Proof.root, Proof.relay, Proof.meeting),
    "demand": (Proof.lengths, Proof.reach),
}
KINDS = {unit: {kind.__name__: kind for kind in kinds} for unit, kinds in KINDS.items()}


def check(data, beside=(), adding=False):
    """The findings about a file: [(whether it holds, what was checked, what was found)]."""
    need("symmetry" not in data, "an implicit schedule; gradweave.load(path) expands it")
    net, plan, found = Network(data["topology"]), None, []
    asked = Asked(data["collective"], data.get("demand"), net)
    if "transfers" in data:
        try:
            plan = Plan(data, net, asked, adding)
            text = f"valid: {asked.name}, {plan.rounds} rounds, {len(plan.transfers)} transfers"
            found.append((True, "schedule", text))
        except Wrong as error:
            return [(False, "schedule", f"invalid: {error}")]
    for order, one in enumerate([*of_list(data.get("certificates", [])), *beside]):
        try:
            proof = Proof(one, net, asked)
            good, text = proof.of(plan) if plan else (True, "")
            least = proof.least if proof.rounds else f"{float(proof.least):.9g}"
            text = f"at least {least} {proof.unit}{'; ' * bool(text)}{text}"
            text = f"proved for {proof.holds_for()}: {text}"
        except (Wrong, *BROKEN) as error:
            good, text = False, f"refused: {error}"
        found.append((good, f"certificate {order}", text))
    return found


def loaded(content):
    """UTF-8 JSON without a byte order mark, nested less than a hundred deep, numbers finite."""
    def refused(word):
        raise Wrong(f"JSON: {word:.40}")

    def integer(digits):
        need(len(digits) < 40 and -(1 << 127) <= int(digits) < 1 << 127, "JSON: too large a number")
        return int(digits)

    data = json.loads(content.decode(), parse_constant=refused, parse_int=integer)
    depth, level = 0, [data]
    while level := [x for one in level if type(one) in (list, dict)
                    for x in (one.values() if type(one) is dict else one)]:
        depth += 1
        need(depth < 100, "JSON: nested too deeply")
    return data


def main():
    if {"-h", "--help"} & {*sys.argv[1:]}:
        print(__doc__)
        return
    paths, adding = [x for x in sys.argv[1:] if x[:2] != "--"], "--aggregating-switches" in sys.argv
    try:
        need(0 < len(paths) == len(sys.argv) - 1 - adding, (__doc__ or "").splitlines()[2].strip())
        files = []
        for path in paths:
            with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
                files.append(loaded(file.read()))
        beside = [one for other in files[1:] for one in of_list(other["certificates"])]
        found = check(files[0], beside, adding)
    except (Wrong, RecursionError, *BROKEN) as error:
        text = f"{' '.join(paths)}: not checked: {type(error).__name__}: {error}"
        print(text[:500], file=sys.stderr)
        sys.exit(2)
    for _, what, text in found:
        print(f"{what}: {text}")
    sys.exit(not all(good for good, *_ in found))


if __name__ == "__main__":
    main()
