/* The network in SVG: links, servers, switches, and the moving transfers of one round. */

const MAX_TRACKS = 6000;
const MAX_DOTS = 400;
const DENSE_TRANSFERS = 300;
const RESTING = 0.36;

/** An SVG element with attributes. */
function svg(name, attributes = {}, parent = null) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Relative thickness of links of each bandwidth, by rank if bandwidths differ. */
function bandWidths(schedule) {
  const bands = schedule.raw.bands.length;
  return Array.from({ length: bands }, (_, band) => (bands < 2 ? 0.75 : 0.5 + (1.7 * band) / (bands - 1)));
}

/** The smallest distance between two links that end next to each other on a bar. */
function leastGap(schedule, geometry) {
  const onBar = new Map();
  schedule.links.source.forEach((node, link) => {
    if (!schedule.isBar(node)) return;
    /* Links that leave the end of an upright bar lie side by side. */
    const across = geometry.wide[node] >= geometry.high[node] || Math.abs(geometry.endX[link] - geometry.x[node]) > 1e-3;
    const side = `${node} ${across}`;
    if (!onBar.has(side)) onBar.set(side, new Set());
    onBar.get(side).add((across ? geometry.endX : geometry.endY)[link]);
  });
  let least = Infinity;
  for (const ends of onBar.values()) {
    const sorted = [...ends].sort((a, b) => a - b);
    for (let i = 1; i < sorted.length; i++) if (sorted[i] - sorted[i - 1] > 0.05) least = Math.min(least, sorted[i] - sorted[i - 1]);
  }
  return least;
}

/** Draws links, one path for each bandwidth, and the bars of switches under them. */
function drawLinks(schedule, geometry, layer) {
  const { links } = schedule;
  const paths = new Map();
  for (let link = 0; link < links.source.length; link++) {
    if (links.source[link] > links.target[link]) continue;
    const points = lane(schedule, geometry, links.source[link], links.target[link], 0, 0, 0);
    paths.set(links.band[link], (paths.get(links.band[link]) ?? "") + pathData(points));
  }
  const share = bandWidths(schedule), most = Math.max(0.8, 0.6 * leastGap(schedule, geometry));
  for (const [band, d] of [...paths].sort(([a], [b]) => a - b)) {
    svg("path", { d, class: "link", "stroke-width": Math.min(most, geometry.stroke * share[band] + 0.3).toFixed(2) }, layer);
  }
  const limit = schedule.raw.limits.find(({ links }) => links.length);
  if (!limit) return;
  const d = limit.links.map((link) => pathData(lane(schedule, geometry, links.source[link], links.target[link], 0, 0, 0))).join("");
  svg("path", { d, class: "limit", "stroke-width": Math.min(most, geometry.stroke * 0.75 + 0.3).toFixed(2) }, layer);
}

/** Draws the outlines of boxes, racks and pods, with their names. */
function drawFrames({ frames }, layer) {
  namesOfFrames(frames).forEach(({ text, size }, i) => {
    const { x, y, wide, high, strip, below } = frames[i];
    svg("rect", { x: x - wide, y: y - high, width: 2 * wide, height: 2 * high, rx: Math.min(0.3 * strip, 8), class: "frame" }, layer);
    const middle = y + (below ? 1 : -1) * (high - strip / 2);
    svg("text", { x, y: middle, "font-size": size.toFixed(2) }, layer).textContent = text;
  });
}

/** Draws one switch as a bar with space for lanes. */
function drawBar(geometry, node, layer) {
  const thick = Math.max(2, geometry.room[node]) / 2;
  const [wide, high] = [Math.max(geometry.wide[node], thick), Math.max(geometry.high[node], thick)];
  svg("rect", {
    x: geometry.x[node] - wide, y: geometry.y[node] - high, width: 2 * wide, height: 2 * high,
    rx: Math.min(thick, geometry.radius * 0.4), class: "bar", "stroke-width": Math.max(0.5, geometry.stroke * 0.35),
  }, layer);
}

/** A slice of a server's ring between two fractions of a turn. */
function sliceData(inner, outer, from, to) {
  const point = (radius, share) => {
    const angle = (share - 0.25) * 2 * Math.PI;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  };
  const large = to - from > 0.5 ? 1 : 0;
  return `M${point(outer, from)}A${outer} ${outer} 0 ${large} 1 ${point(outer, to)}`
    + `L${point(inner, to)}A${inner} ${inner} 0 ${large} 0 ${point(inner, from)}Z`;
}

/** Draws one server: a ring with a slice per piece, as large as its share, or with one arc if slices are too small. */
function drawServer(schedule, geometry, node, pieces, colour, layer) {
  const r = geometry.radius, inner = r * 0.64;
  const group = svg("g", { class: "server", transform: `translate(${geometry.x[node]} ${geometry.y[node]})` }, layer);
  svg("circle", { r, class: "base" }, group);
  const slices = [];
  let share = null, part = null;
  const [least] = pieceSizes(schedule);
  if (2 * Math.PI * r * 0.8 * least >= 3.2) {
    const gap = pieces < 2 ? 0 : Math.min(0.012, 0.12 * least);
    let from = 0;
    for (let piece = 0; piece < pieces; piece++) {
      const to = from + schedule.share[piece];
      const d = sliceData(inner, r - 0.5, from + gap / 2, Math.min(to - gap / 2, 0.9999 + from));
      slices.push(svg("path", { d, fill: colour(piece), class: "slice" }, group));
      from = to;
    }
  } else {
    const ring = { r: (r + inner) / 2, "stroke-width": r - inner, pathLength: 1, transform: "rotate(-90)" };
    part = svg("circle", { ...ring, class: "part" }, group);
    share = svg("circle", { ...ring, class: "share" }, group);
  }
  svg("circle", { r: inner, class: "core" }, group);
  const name = schedule.shortName(node);
  svg("text", { "font-size": (r * Math.min(0.58, 1.8 / name.length)).toFixed(2) }, group).textContent = name;
  return { group, slices, share, part };
}

/** Draws one switch. */
function drawSwitch(geometry, node, layer) {
  const r = Math.max(1.2, geometry.radius * 0.46);
  svg("rect", {
    x: -r, y: -r, width: 2 * r, height: 2 * r, rx: r * 0.3, class: "switch",
    transform: `translate(${geometry.x[node]} ${geometry.y[node]}) rotate(45)`,
  }, layer);
}

/** Draws the network and returns the functions that update it. */
function drawNetwork(schedule, root, colour, width) {
  const geometry = geometryOf(schedule, width);
  root.replaceChildren();
  root.classList.toggle("dense", geometry.radius < DENSE_RADIUS);
  const layer = (name) => svg("g", { class: name }, root);
  const [frames, bars, links, switches, tree, tracks, servers, dots] =
    ["frames", "bars", "links", "switches", "tree", "tracks", "servers", "dots"].map(layer);
  drawFrames(geometry, frames);
  drawLinks(schedule, geometry, links);
  const pieces = schedule.root.length;
  for (let node = 0; node < schedule.count; node++) {
    if (schedule.isBar(node)) drawBar(geometry, node, bars);
    else if (!schedule.nodes.server[node]) drawSwitch(geometry, node, switches);
  }
  const rings = schedule.servers.map((node) => drawServer(schedule, geometry, node, pieces, colour, servers));
  const drawing = { schedule, geometry, colour, tree, tracks, dots, rings, moving: [], dotPaths: null };
  return {
    geometry,
    showRound: (round, piece) => showRound(drawing, round, piece),
    showMoment: (now, piece) => showMoment(drawing, now, piece),
    showTree: (round, piece) => showTree(drawing, round, piece),
    move: (progress, resting) => moveDots(drawing, progress, resting),
    hold: (held) => fillServers(drawing, held),
    load: () => drawing.load,
    highlight: (transfer) => highlight(drawing, root, transfer),
    at: (x, y) => whatIsAt(drawing, x, y),
    transfers: () => drawing.moving.map(({ t }) => t),
    ways: () => drawing.moving.map(({ t, points }) => [t, points]),
  };
}

/** Offsets of a route's links to their right: each further transfer on a link direction takes the next lane. */
function laneOffsets(drawing, route, taken, load) {
  const { schedule, geometry } = drawing;
  const offsets = [];
  for (let i = 0; i + 1 < route.length; i++) {
    const link = schedule.linkBetween(route[i], route[i + 1]);
    const mine = taken.get(link) ?? 0;
    taken.set(link, mine + 1);
    offsets.push(laneOffset(geometry, mine, load?.get(link) ?? 1));
  }
  return offsets;
}

/** Distance of a lane from a link's centre line, to the right. */
function laneOffset(geometry, lane, lanes) {
  if (lanes <= 1) return geometry.side;
  const room = Math.min(geometry.stroke + (geometry.radius < DENSE_RADIUS ? 0.4 : 2), (geometry.radius * 0.85) / lanes);
  return Math.max(geometry.side * 0.4, Math.min(geometry.side, geometry.radius * 0.9 - lanes * room)) + lane * room;
}

/** Number of transfers of a round over each link direction. */
function loadOf(schedule, start, end) {
  const load = new Map();
  for (let t = start; t < end; t++) {
    const route = schedule.routeOf(t);
    for (let i = 0; i + 1 < route.length; i++) {
      const link = schedule.linkBetween(route[i], route[i + 1]);
      load.set(link, (load.get(link) ?? 0) + 1);
    }
  }
  return load;
}

/** Draws a round's transfers, with other pieces dimmed if one is followed. Returns the number left out. */
function showRound(drawing, round, piece) {
  const { schedule, geometry, tracks, dots } = drawing;
  drawing.clock = "rounds";
  const [start, end] = transfersOf(schedule, round);
  const shown = Math.min(end, start + MAX_TRACKS);
  drawing.load = loadOf(schedule, start, end);
  const taken = new Map();
  const routes = Array.from({ length: shown - start }, (_, i) => schedule.routeOf(start + i));
  const lanes = barLanes(schedule, geometry, routes);
  drawing.stroke = lanes.stroke;
  drawing.moving = routes.map((route, i) => {
    const points = routePoints(schedule, geometry, route, laneOffsets(drawing, route, taken, drawing.load), lanes.offsets[i]);
    const t = start + i;
    return { t, dim: piece !== null && schedule.piece[t] !== piece, track: null, dot: null, ...measured(points) };
  });
  const parts = [document.createDocumentFragment(), document.createDocumentFragment()];
  const dense = geometry.radius < DENSE_RADIUS || shown - start > DENSE_TRANSFERS;
  dense ? drawTogether(drawing, parts) : drawEach(drawing, round, piece, parts);
  tracks.replaceChildren(parts[0]);
  dots.replaceChildren(parts[1]);
  return Math.max(0, end - shown);
}

/** Draws every transfer separately. */
function drawEach(drawing, round, piece, parts) {
  const { schedule, geometry } = drawing;
  const labelled = geometry.radius >= 25 && drawing.moving.length <= 200;
  drawing.dotPaths = null;
  let dots = 0;
  for (const one of drawing.moving) {
    one.track = drawTrack(drawing, one, one.dim ? "dim" : "", parts[0]);
    const label = !labelled ? "" : piece === null ? schedule.piece[one.t] : round;
    if (!one.dim && dots++ < MAX_DOTS) one.dot = drawDot(drawing, one.t, label, parts[1]);
  }
}

/** Draws the way of one transfer. */
function drawTrack({ schedule, colour, stroke: width }, { t, points }, className, parent) {
  const track = svg("g", { class: `transfer${schedule.op[t] ? " copy" : ""} ${className}` }, parent);
  const stroke = colour(schedule.piece[t]);
  svg("path", { d: pathData(points), class: "track", stroke, "stroke-width": width, "stroke-dasharray": dashes(schedule, width, t) }, track);
  svg("path", { d: arrowHead(points, width * 2.8 + 1), fill: stroke }, track);
  return track;
}

/** Dashes of a copy's track. */
function dashes(schedule, width, t) {
  return schedule.op[t] ? `${(width * 2.2).toFixed(2)} ${(width * 1.9).toFixed(2)}` : "none";
}

/** Draws many transfers with few elements: one for each colour and operation. */
function drawTogether(drawing, parts) {
  const { schedule, geometry, colour, stroke: width } = drawing;
  const groups = new Map();
  for (const one of drawing.moving) {
    const key = one.dim ? "dim" : `${schedule.piece[one.t]} ${schedule.op[one.t]}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(one);
  }
  drawing.dotPaths = [];
  for (const [key, members] of groups) {
    const { t, dim } = members[0];
    const group = svg("g", { class: `transfers${schedule.op[t] && !dim ? " copy" : ""}${dim ? " dim" : ""}` }, parts[0]);
    const stroke = dim ? themed("--muted") : colour(schedule.piece[t]);
    const join = (draw) => members.map(draw).join("");
    svg("path", { d: join((one) => pathData(one.points)), class: "track", stroke, "stroke-width": width, "stroke-dasharray": dim ? "none" : dashes(schedule, width, t) }, group);
    if (dim) continue;
    svg("path", { d: join((one) => arrowHead(one.points, width * 2.6 + 0.8)), fill: stroke }, group);
    const size = Math.max(2, geometry.radius * 0.5);
    const path = svg("path", { class: "moving", stroke, "stroke-width": size, "stroke-linecap": schedule.op[t] ? "square" : "round" }, parts[1]);
    drawing.dotPaths.push({ path, members });
  }
}

/** Draws a moving piece: a disc for a reduce, an open square for a copy. */
function drawDot(drawing, t, label, parent) {
  const { schedule, geometry, stroke } = drawing;
  const r = Math.max(2.4, geometry.radius * (stroke < geometry.stroke * 0.6 ? 0.2 : 0.29));
  const copy = schedule.op[t];
  const paint = drawing.colour(schedule.piece[t]);
  const dot = svg("g", { class: `dot${copy ? " copy" : ""}` }, parent);
  if (copy) {
    svg("rect", { x: -r * 0.88, y: -r * 0.88, width: r * 1.76, height: r * 1.76, rx: r * 0.3, stroke: paint, "stroke-width": Math.max(1.6, r * 0.24) }, dot);
  } else svg("circle", { r, fill: paint }, dot);
  if (label !== "") svg("text", { "font-size": r * 1.15 }, dot).textContent = String(label);
  return dot;
}

/** Draws all transfers of one piece in the current stage, with their rounds; later ones are faint. */
function showTree(drawing, round, piece) {
  const { schedule, geometry, tree } = drawing;
  if (piece === null) return tree.replaceChildren();
  const mine = [];
  for (let t = 0; t < schedule.transfers; t++) if (schedule.piece[t] === piece) mine.push(t);
  const firstCopy = mine.find((t) => schedule.op[t]);
  const copies = firstCopy !== undefined && (round >= roundOf(schedule, firstCopy) || !mine.some((t) => !schedule.op[t]));
  const part = document.createDocumentFragment();
  for (const t of mine.filter((t) => Boolean(schedule.op[t]) === copies).slice(0, MAX_TRACKS)) {
    const when = roundOf(schedule, t);
    if (when === round) continue;
    const route = schedule.routeOf(t);
    const points = routePoints(schedule, geometry, route, laneOffsets(drawing, route, new Map(), null), null);
    const group = svg("g", { class: `transfer${copies ? " copy" : ""}${when > round ? " later" : ""}` }, part);
    const stroke = drawing.colour(piece);
    svg("path", { d: pathData(points), class: "track", stroke, "stroke-width": geometry.stroke * 0.8 }, group);
    svg("path", { d: arrowHead(points, geometry.stroke * 2.6 + 2), fill: stroke }, group);
    const [x, y] = measured(points).at(RESTING);
    svg("text", { x, y, class: "when", "font-size": Math.max(geometry.radius < DENSE_RADIUS ? 4 : 10, geometry.radius * 0.5) }, group).textContent = String(when);
  }
  tree.replaceChildren(part);
}

/** Moves the dots to a fraction of their way; at rest they stay in the first half as labels of their tracks. */
function moveDots(drawing, progress, resting) {
  const eased = progress < 0.5 ? 2 * progress ** 2 : 1 - 2 * (1 - progress) ** 2;
  drawing.dots.classList.toggle("resting", resting);
  for (const { path, members } of drawing.dotPaths ?? []) {
    path.setAttribute("d", members.map(({ at }) => {
      const [x, y] = at(resting ? RESTING : eased);
      return `M${x.toFixed(1)} ${y.toFixed(1)}h0`;
    }).join(""));
  }
  for (const { dot, at } of drawing.moving) {
    if (!dot) continue;
    const [x, y] = at(resting ? RESTING : eased);
    dot.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }
}

/** Fills the servers' rings with the contributions that they hold. */
function fillServers(drawing, held) {
  const { need, gets, share: sizes } = drawing.schedule, pieces = need.length;
  drawing.rings.forEach(({ group, slices, share, part }, server) => {
    let missing = 0, asked = 0, whole = 0, sum = 0;
    for (let piece = 0; piece < pieces; piece++) {
      const value = held[server * pieces + piece], size = sizes[piece];
      slices[piece]?.setAttribute("fill-opacity", depth(value, need[piece]).toFixed(3));
      if (gets && !gets[server * pieces + piece]) continue;
      asked += size;
      missing += value !== need[piece];
      if (value === need[piece]) whole += size;
      sum += (Math.min(value, need[piece]) / need[piece]) * size;
    }
    if (!gets) asked = 1;
    share?.setAttribute("stroke-dasharray", `${!asked ? 0 : missing ? whole / asked : 1} 1`);
    part?.setAttribute("stroke-dasharray", `${asked ? sum / asked : 0} 1`);
    group.classList.toggle("complete", asked > 0 && !missing);
  });
}

/** Opacity for a number of contributions; a complete sum is clearly stronger than any partial sum. */
function depth(value, all) {
  return value <= 0 ? 0 : value >= all ? 1 : 0.16 + 0.52 * (value / all);
}

/** Highlights one transfer of the round, or none. */
function highlight(drawing, root, transfer) {
  root.classList.toggle("pointing", transfer !== null);
  drawing.alone?.remove();
  drawing.alone = null;
  for (const one of drawing.moving) {
    one.track?.classList.toggle("hot", one.t === transfer);
    one.dot?.classList.toggle("hot", one.t === transfer);
    if (drawing.dotPaths && one.t === transfer) drawing.alone = drawTrack(drawing, one, "hot", drawing.tracks);
  }
}

/** The node or link at a point in the drawing. */
function whatIsAt(drawing, x, y) {
  const { schedule, geometry } = drawing;
  for (let node = 0; node < schedule.count; node++) {
    if (Math.hypot(geometry.x[node] - x, geometry.y[node] - y) <= geometry.radiusOf(node) + 3) return { node };
  }
  for (let node = 0; node < schedule.count; node++) {
    const thick = geometry.room[node] / 2;
    if (thick && Math.abs(geometry.x[node] - x) <= geometry.wide[node] + thick && Math.abs(geometry.y[node] - y) <= geometry.high[node] + thick) return { node };
  }
  let best = { distance: Math.max(Math.min(9, geometry.radius), geometry.side * 2) };
  const { links } = schedule;
  for (let link = 0; link < links.source.length; link++) {
    if (links.source[link] > links.target[link]) continue;
    const distance = distanceTo(lane(schedule, geometry, links.source[link], links.target[link], 0, 0, 0), x, y);
    if (distance < best.distance) best = { distance, link };
  }
  return best.link === undefined ? null : { link: best.link };
}
