/* Positions in the drawing, and the lines between them. */

const DENSE_RADIUS = 12;

/** Positions and sizes of nodes in the drawing. */
function geometryOf(schedule, width) {
  const { x, y, wide: reachX, high: reachY } = schedule.nodes;
  const range = (values, reach, at, half) => [
    ...Array.from(values, (v, i) => [v, reach[i]]), ...schedule.frames.map((frame) => [frame[at], frame[half]]),
  ].reduce(([a, b], [v, r]) => [Math.min(a, v - r), Math.max(b, v + r)], [Infinity, -Infinity]);
  const [left, right] = withBows(schedule, range(x, reachX, "x", "wide")), [top, bottom] = range(y, reachY, "y", "high");
  const wide = Math.max(right - left, 1e-6), high = Math.max(bottom - top, 1e-6);
  const many = schedule.servers.length > 60;
  const side = many ? 50 : 110;
  const scale = Math.min((width - side) / wide, (many ? width * 0.9 : width < 700 ? width - side : 0.56 * width) / high);
  const radius = Math.max(1.6, Math.min(40, schedule.raw.radius * scale));
  const margin = radius * 1.5 + (many ? 6 : 12) + bulge(schedule, scale);
  const height = high * scale + 2 * margin;
  const acrossX = (v) => width / 2 + (v - (left + right) / 2) * scale;
  const acrossY = (v) => height / 2 + (v - (top + bottom) / 2) * scale;
  const geometry = {
    x: Float64Array.from(x, acrossX), y: Float64Array.from(y, acrossY),
    wide: Float64Array.from(reachX, (v) => v * scale), high: Float64Array.from(reachY, (v) => v * scale),
    frames: schedule.frames.map((frame) => ({ ...frame, x: acrossX(frame.x), y: acrossY(frame.y), wide: frame.wide * scale, high: frame.high * scale, strip: frame.strip * scale })),
    endX: Float64Array.from(schedule.links.x, acrossX), endY: Float64Array.from(schedule.links.y, acrossY),
    width, height, radius,
    radiusOf: (node) => (schedule.nodes.server[node] ? radius : schedule.isBar(node) ? 0 : Math.max(1.6, radius * 0.62)),
    side: Math.max(radius < DENSE_RADIUS ? 1 : 2.4, radius * 0.26),
    stroke: Math.max(0.8, Math.min(4, radius * 0.14)),
  };
  geometry.room = roomOfBars(schedule, geometry);
  return geometry;
}

/** The text of each frame and its size, the same within a level. */
function namesOfFrames(frames) {
  const sizeOf = (frame, text) => Math.min(15, 0.72 * frame.strip, (1.84 * frame.wide) / (0.58 * Math.max(1, text.length)));
  return frames.map(({ level, label, short }) => {
    const mine = frames.filter((frame) => frame.level === level);
    const [full, least] = ["label", "short"].map((text) => Math.min(...mine.map((frame) => sizeOf(frame, frame[text]))));
    return full < 9 ? { text: short, size: least } : { text: label, size: full };
  });
}

/** Maximum thickness of each bar: twice the distance to the nearest server, or that to the nearest parallel bar. */
function roomOfBars(schedule, geometry) {
  const room = new Float64Array(schedule.count);
  const bars = [...room.keys()].filter(schedule.isBar);
  for (const bar of bars) {
    const level = geometry.wide[bar] > 0;
    const [along, across] = level ? [geometry.x, geometry.y] : [geometry.y, geometry.x];
    const reach = level ? geometry.wide : geometry.high;
    let free = geometry.radius * 2.2;
    for (let node = 0; node < schedule.count; node++) {
      const apart = Math.abs(across[node] - across[bar]);
      if (node === bar || Math.abs(along[node] - along[bar]) > reach[bar] + reach[node]) continue;
      if (schedule.isBar(node)) {
        if (geometry.wide[node] > 0 === level) free = Math.min(free, apart * 0.4);
      } else free = Math.min(free, apart - geometry.radiusOf(node));
    }
    room[bar] = Math.max(1.6, 1.7 * free);
  }
  return room;
}

/** Horizontal extent of a drawing including the midpoints of bowed links, in drawing units. */
function withBows({ links, nodes }, [left, right]) {
  for (let link = 0; link < links.source.length; link++) {
    if (!links.bend[link]) continue;
    const [a, b] = [links.source[link], links.target[link]];
    const middle = (nodes.x[a] + nodes.x[b]) / 2 - ((nodes.y[b] - nodes.y[a]) * links.bend[link]) / 2;
    left = Math.min(left, middle);
    right = Math.max(right, middle);
  }
  return [left, right];
}

/** Approximate distance by which bowed links extend beyond the outermost nodes, in drawing units. */
function bulge(schedule, scale) {
  const { links, nodes } = schedule;
  let most = 0;
  for (let link = 0; link < links.source.length; link++) {
    if (!links.bend[link]) continue;
    const [a, b] = [links.source[link], links.target[link]];
    most = Math.max(most, Math.abs(links.bend[link]) * Math.hypot(nodes.x[a] - nodes.x[b], nodes.y[a] - nodes.y[b]));
  }
  return most * scale * 0.3;
}

/** Points along one link direction, shifted to its right by an offset, from one node's edge to the other's. */
function lane(schedule, geometry, source, target, offset, trimSource, trimTarget) {
  const link = schedule.linkBetween(source, target), back = schedule.linkBetween(target, source);
  const ax = geometry.endX[link], ay = geometry.endY[link];
  const dx = geometry.endX[back] - ax, dy = geometry.endY[back] - ay;
  const length = Math.hypot(dx, dy) || 1;
  const nx = -dy / length, ny = dx / length;
  const bow = schedule.links.bend[link] * length;
  const from = Math.min(trimSource / length, 0.45), to = 1 - Math.min(trimTarget / length, 0.45);
  const steps = bow ? 16 : 1;
  const points = [];
  for (let i = 0; i <= steps; i++) {
    const s = from + ((to - from) * i) / steps;
    const out = offset + 2 * s * (1 - s) * bow;
    points.push([ax + dx * s + nx * out, ay + dy * s + ny * out]);
  }
  return points;
}

/** Points along a whole route: soft turns at points, straight runs along a lane of each bar. */
function routePoints(schedule, geometry, route, offsets, lanes) {
  const points = [];
  for (let i = 0; i + 1 < route.length; i++) {
    const [source, target] = [route[i], route[i + 1]];
    const last = i + 2 === route.length;
    const trimSource = geometry.radiusOf(source) * (i ? 0.75 : 1) + (i ? 0 : geometry.stroke * 0.8);
    const trimTarget = geometry.radiusOf(target) * (last ? 1 : 0.75) + (last ? geometry.stroke * 1.3 : 0);
    const piece = lane(schedule, geometry, source, target, offsets[i], trimSource, trimTarget);
    if (schedule.isBar(source)) ontoLane(geometry, source, piece[0], lanes?.[i] ?? 0);
    else if (i) points.push(...turn(points[points.length - 1], piece[0], geometry.x[source], geometry.y[source]));
    if (schedule.isBar(target)) ontoLane(geometry, target, piece[piece.length - 1], lanes?.[i + 1] ?? 0);
    points.push(...piece);
  }
  return points;
}

/** Moves the end point of a link to a lane of the bar there. */
function ontoLane(geometry, bar, point, offset) {
  if (geometry.wide[bar] > 0) point[1] = geometry.y[bar] + offset;
  else point[0] = geometry.x[bar] + offset;
}

/** Start and end of a route's run along the bar at a place in it. */
function spanOnBar(schedule, geometry, route, i) {
  const along = geometry.wide[route[i]] > 0 ? geometry.endX : geometry.endY;
  const ends = [route[i - 1], route[i + 1]].map((other) => along[schedule.linkBetween(route[i], other)]);
  return [Math.min(...ends), Math.max(...ends)];
}

/**
 * For each route, by place in it, the distance of its lane from the centre line of a bar. Routes that overlap on a bar
 * have different lanes: left to right, each takes the first free lane. Also the thickness at which lines stay apart.
 */
function barLanes(schedule, geometry, routes) {
  const offsets = routes.map(() => []);
  const onBar = new Map();
  routes.forEach((route, index) => {
    for (let i = 1; i + 1 < route.length; i++) {
      const bar = route[i];
      if (!schedule.isBar(bar)) continue;
      const [from, to] = spanOnBar(schedule, geometry, route, i);
      if (!onBar.has(bar)) onBar.set(bar, []);
      onBar.get(bar).push({ index, i, from, to });
    }
  });
  let stroke = geometry.stroke;
  for (const [bar, spans] of onBar) {
    spans.sort((a, b) => a.from - b.from || a.to - b.to);
    const free = [];
    for (const span of spans) {
      const found = free.findIndex((end) => end < span.from - geometry.radius * 0.5);
      span.lane = found < 0 ? free.length : found;
      free[span.lane] = span.to;
    }
    const apart = Math.min(geometry.stroke * 1.9 + 0.6, geometry.room[bar] / free.length);
    stroke = Math.max(0.7, Math.min(stroke, apart * 0.72));
    for (const { index, i, lane } of spans) offsets[index][i] = (lane - (free.length - 1) / 2) * apart;
  }
  return { offsets, stroke };
}

/** A quadratic curve between two points, pulled towards the centre of the node in between. */
function turn([ax, ay], [bx, by], x, y) {
  const cx = (ax + bx) / 4 + x / 2, cy = (ay + by) / 4 + y / 2;
  return [0.2, 0.4, 0.6, 0.8].map((s) => [
    ax * (1 - s) ** 2 + 2 * cx * s * (1 - s) + bx * s ** 2,
    ay * (1 - s) ** 2 + 2 * cy * s * (1 - s) + by * s ** 2,
  ]);
}

/** Lengths along a polyline, and the point at a fraction of it. */
function measured(points) {
  const lengths = [0];
  for (let i = 1; i < points.length; i++) {
    lengths.push(lengths[i - 1] + Math.hypot(points[i][0] - points[i - 1][0], points[i][1] - points[i - 1][1]));
  }
  const at = (share) => {
    const want = share * lengths[lengths.length - 1];
    let i = 1;
    while (i < points.length - 1 && lengths[i] < want) i++;
    const s = (want - lengths[i - 1]) / (lengths[i] - lengths[i - 1] || 1);
    return [0, 1].map((k) => points[i - 1][k] + (points[i][k] - points[i - 1][k]) * s);
  };
  return { points, at };
}

const pathData = (points) => "M" + points.map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L");

/** The arrowhead at the end of a polyline. */
function arrowHead(points, size) {
  const [x, y] = points[points.length - 1], [px, py] = points[points.length - 2];
  const length = Math.hypot(x - px, y - py) || 1;
  const ux = ((x - px) / length) * size, uy = ((y - py) / length) * size;
  return pathData([[x - ux - uy * 0.62, y - uy + ux * 0.62], [x + ux * 0.25, y + uy * 0.25], [x - ux + uy * 0.62, y - uy - ux * 0.62]]) + "Z";
}

/** Distance of a point from a polyline. */
function distanceTo(points, x, y) {
  let least = Infinity;
  for (let i = 1; i < points.length; i++) {
    const [ax, ay] = points[i - 1], [bx, by] = points[i];
    const span = (bx - ax) ** 2 + (by - ay) ** 2 || 1;
    const s = Math.max(0, Math.min(1, ((x - ax) * (bx - ax) + (y - ay) * (by - ay)) / span));
    least = Math.min(least, Math.hypot(ax + (bx - ax) * s - x, ay + (by - ay) * s - y));
  }
  return least;
}
