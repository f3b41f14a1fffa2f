/* The schedule in the page's form: unpacked columns, loads of link directions, and contributions held. */

/** The round before the first: nothing has moved. */
const START = -1;

/** A typed array from a packed column. */
function unpack(column) {
  const text = atob(column.base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const Kind = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array }[column.kind];
  return new Kind(bytes.buffer);
}

/** The schedule with unpacked columns and the lookup tables that the page needs. */
function readSchedule(raw) {
  const unpackAll = (columns) => Object.fromEntries(Object.entries(columns).map(([k, v]) => [k, unpack(v)]));
  const { labels, names, short, ...columns } = raw.nodes;
  const nodes = { ...unpackAll(columns), labels };
  const links = unpackAll(raw.links);
  const count = nodes.x.length;
  const servers = [...nodes.server.keys()].filter((node) => nodes.server[node]);
  const linkOf = new Map();
  links.source.forEach((source, link) => linkOf.set(source * count + links.target[link], link));
  const routes = unpackAll(raw.routes);
  const schedule = {
    raw, nodes, links, servers, count,
    frames: raw.frames.x.map((_, i) => Object.fromEntries(Object.entries(raw.frames).map(([k, v]) => [k, v[i]]))),
    root: unpack(raw.root),
    share: unpack(raw.share),
    rounds: raw.rounds,
    roundOffsets: unpack(raw.roundOffsets),
    roundSeconds: unpack(raw.roundSeconds),
    seconds: Math.fround(raw.use.seconds), // as the times of transfers are kept
    isBar: (node) => nodes.wide[node] > 0 || nodes.high[node] > 0,
    ...unpackAll(raw.transfers),
    linkBetween: (source, target) => linkOf.get(source * count + target) ?? -1,
    routeOf: (t) => routes.nodes.subarray(routes.offsets[schedule.route[t]], routes.offsets[schedule.route[t] + 1]),
    named: names.length > 0,
    name: (node) => names[node] || String(node),
    shortName: (node) => short[node] || String(node),
  };
  schedule.transfers = schedule.piece.length;
  Object.assign(schedule, readDemand(schedule));
  schedule.rooted = rootedShares(schedule);
  return schedule;
}

/**
 * Per piece, the number of contributions that complete it; by `rank * pieces + piece`, who contributes to it and who must receive it.
 * Without a demand everyone contributes, and everyone must receive everything, except in a reduce-scatter only the roots.
 */
function readDemand({ raw, servers, root }) {
  const pieces = root.length, cells = servers.length * pieces;
  if (!raw.demand) return { need: new Float32Array(pieces).fill(servers.length), gives: null, gets: null };
  const marked = ({ rank, piece }) => {
    const [ranks, of] = [unpack(rank), unpack(piece)], marks = new Uint8Array(cells);
    ranks.forEach((one, i) => (marks[one * pieces + of[i]] = 1));
    return marks;
  };
  const gives = marked(raw.demand.contributors), gets = marked(raw.demand.destinations);
  const need = new Float32Array(pieces);
  gives.forEach((mark, cell) => (need[cell % pieces] += mark));
  return { need, gives, gets };
}

/** By rank, the share of the gradient that each server roots, and its number of pieces. */
function rootedShares({ servers, root, share }) {
  const rank = new Map(servers.map((node, index) => [node, index]));
  const rooted = servers.map(() => ({ share: 0, pieces: 0 }));
  root.forEach((node, piece) => {
    const own = rooted[rank.get(node)];
    own.share += share[piece];
    own.pieces += 1;
  });
  return rooted;
}

/** The smallest and the largest share of a piece; equal up to rounding if pieces have one size. */
function pieceSizes({ share }) {
  return [share.reduce((a, b) => Math.min(a, b), Infinity), share.reduce((a, b) => Math.max(a, b), 0)];
}

/** First and one past the last transfer of a round; rounds count from 0, as in the file, and START has none. */
function transfersOf(schedule, round) {
  return round < 0 || round >= schedule.rounds ? [0, 0] : [schedule.roundOffsets[round], schedule.roundOffsets[round + 1]];
}

/** The round of a transfer. */
function roundOf(schedule, transfer) {
  let low = 0, high = schedule.rounds - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (schedule.roundOffsets[middle + 1] > transfer) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The transfers in a half-open range. */
function between(start, end) {
  return Array.from({ length: end - start }, (_, i) => start + i);
}

/** Calls with each link direction of a route. */
function eachLink(schedule, route, act) {
  for (let i = 0; i + 1 < route.length; i++) act(schedule.linkBetween(route[i], route[i + 1]));
}

/** The names of the two stages; of a gradient that travels in one piece, a reduce and a broadcast. */
function stageNames(schedule) {
  if (schedule.gets) return ["sums", "copies"];
  return schedule.root.length === 1 ? ["reduce", "broadcast"] : ["reduce-scatter", "all-gather"];
}

/** The stages of some transfers in words; empty without transfers. */
function stagesOf(schedule, transfers) {
  let reduces = false, copies = false;
  for (const t of transfers) schedule.op[t] ? (copies = true) : (reduces = true);
  const [adding, copying] = stageNames(schedule);
  return [reduces && adding, copies && copying].filter(Boolean).join(" + ");
}

/** The stages of a round's transfers in words. */
function stageOf(schedule, round) {
  const [start, end] = transfersOf(schedule, round);
  if (start < end) return stagesOf(schedule, between(start, end));
  if (schedule.gets) return "idle";
  return stageNames(schedule)[Number(round >= schedule.raw.stages.reduce_scatter)];
}

/** Per round, link directions used by reduces and by copies; and the capacity of all link directions. */
function linkLoad(schedule) {
  const load = [new Float64Array(schedule.rounds), new Float64Array(schedule.rounds)];
  for (let round = 0; round < schedule.rounds; round++) {
    const [start, end] = transfersOf(schedule, round);
    for (let t = start; t < end; t++) load[schedule.op[t]][round] += schedule.routeOf(t).length - 1;
  }
  const capacity = schedule.links.capacity.reduce((sum, c) => sum + c, 0);
  return { reduce: load[0], copy: load[1], capacity };
}

/**
 * Contributions held after each round, or at the START: a function from a round to one number per server and piece, of N in all,
 * or of the piece's number of contributors; with a demand, data of non-contributors at the start counts nothing.
 * Adding two partial sums adds their numbers of contributions, so numbers are enough to draw them.
 */
function contributions(schedule) {
  const pieces = schedule.root.length, servers = schedule.servers.length;
  const row = new Int32Array(schedule.count);
  schedule.servers.forEach((node, rank) => (row[node] = rank));
  let rows = servers;
  for (let node = 0; node < schedule.count; node++) if (!schedule.nodes.server[node]) row[node] = rows++;
  const start = new Float32Array(rows * pieces);
  if (schedule.raw.collective === "all_gather") {
    schedule.root.forEach((node, piece) => (start[row[node] * pieces + piece] = servers));
  } else if (schedule.gives) start.set(schedule.gives);
  else start.fill(1, 0, servers * pieces);

  const apart = Math.max(1, Math.ceil((schedule.rounds * rows * pieces) / 8e6));
  const kept = [start];
  /* All of a round's reads come before its first write. */
  const advance = (held, round) => {
    const [first, end] = transfersOf(schedule, round);
    const sent = new Float32Array(end - first);
    for (let t = first; t < end; t++) sent[t - first] = held[row[schedule.source[t]] * pieces + schedule.piece[t]];
    for (let t = first; t < end; t++) {
      const cell = row[schedule.target[t]] * pieces + schedule.piece[t];
      held[cell] = schedule.op[t] ? sent[t - first] : held[cell] + sent[t - first];
    }
    return sent;
  };
  const after = (round) => {
    const done = Math.min(round + 1, schedule.rounds);
    let from = Math.min(Math.floor(done / apart), kept.length - 1) * apart;
    const held = kept[from / apart].slice();
    while (from < done) {
      advance(held, from++);
      if (from === kept.length * apart) kept.push(held.slice());
    }
    return held;
  };
  let timed = null;
  const inTime = () => {
    if (timed) return timed;
    const sent = new Float32Array(schedule.transfers), held = start.slice();
    for (let round = 0; round < schedule.rounds; round++) sent.set(advance(held, round), schedule.roundOffsets[round]);
    return (timed = heldInTime({ schedule, start, sent, row }));
  };
  const complete = (held) => {
    const done = new Int32Array(servers);
    for (let s = 0; s < servers; s++) {
      for (let p = 0; p < pieces; p++) done[s] += held[s * pieces + p] === schedule.need[p] && (schedule.gets?.[s * pieces + p] ?? 1);
    }
    return done;
  };
  /* Pieces that a server must receive. */
  const asked = (server) => schedule.gets?.subarray(server * pieces, (server + 1) * pieces).reduce((sum, mark) => sum + mark, 0) ?? pieces;
  return { after, inTime, complete, asked, pieces, servers, row };
}

/** The hue of each piece: evenly around the circle of OKLCH, neighbours about 137° apart, three lightnesses if many. */
function pieceHues(pieces) {
  const divisor = (a, b) => (b ? divisor(b, a % b) : a);
  let step = Math.max(1, Math.round(pieces * 0.381966));
  while (divisor(step, pieces) !== 1) step++;
  return Array.from({ length: pieces }, (_, piece) => ({
    hue: ((piece * step) % pieces) * (360 / pieces) + 25,
    shade: pieces > 24 ? (piece % 3) - 1 : 0,
  }));
}
