/* Where things stand in the drawing, and the lines between them. */

/** Where nodes stand in the drawing and how large they are. */
function geometryOf(schedule, width) {
  const { x, y } = schedule.nodes;
  const range = (values) => values.reduce(([a, b], v) => [Math.min(a, v), Math.max(b, v)], [Infinity, -Infinity]);
  const [left, right] = range(x), [top, bottom] = range(y);
  const wide = Math.max(right - left, 1e-6), high = Math.max(bottom - top, 1e-6);
  const scale = Math.min((width - 110) / wide, (width < 800 ? width - 110 : 520) / high);
  const radius = Math.max(2.2, Math.min(40, schedule.raw.radius * scale));
  const margin = radius * 1.5 + 12 + bulge(schedule, scale);
  const height = high * scale + 2 * margin;
  return {
    x: Float64Array.from(x, (v) => width / 2 + (v - (left + right) / 2) * scale),
    y: Float64Array.from(y, (v) => height / 2 + (v - (top + bottom) / 2) * scale),
    height, radius,
    radiusOf: (node) => (schedule.nodes.server[node] ? radius : radius * 0.72),
    side: Math.max(2.4, radius * 0.29),
    stroke: Math.max(1.5, Math.min(4, radius * 0.14)),
  };
}

/** How far bowed links reach beyond the nodes at the drawing's edge, about, in drawing units. */
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

/** Points along one link direction, moved to its right by an offset, from one node's edge to the other's. */
function lane(schedule, geometry, source, target, offset, trimSource, trimTarget) {
  const ax = geometry.x[source], ay = geometry.y[source];
  const dx = geometry.x[target] - ax, dy = geometry.y[target] - ay;
  const length = Math.hypot(dx, dy) || 1;
  const nx = -dy / length, ny = dx / length;
  const link = schedule.linkBetween(source, target);
  const bow = link < 0 ? 0 : schedule.links.bend[link] * length;
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

/** Points along a whole route, turning softly at the nodes that it passes. */
function routePoints(schedule, geometry, route, offsets) {
  const points = [];
  for (let i = 0; i + 1 < route.length; i++) {
    const [source, target] = [route[i], route[i + 1]];
    const trimSource = geometry.radiusOf(source) * (i ? 0.75 : 1) + (i ? 0 : 3);
    const last = i + 2 === route.length;
    const trimTarget = geometry.radiusOf(target) * (last ? 1 : 0.75) + (last ? 5 : 0);
    const piece = lane(schedule, geometry, source, target, offsets[i], trimSource, trimTarget);
    if (i) points.push(...turn(points[points.length - 1], piece[0], geometry.x[source], geometry.y[source]));
    points.push(...piece);
  }
  return points;
}

/** A quadratic curve between two points, drawn towards the middle of the node passed. */
function turn([ax, ay], [bx, by], x, y) {
  const cx = (ax + bx) / 4 + x / 2, cy = (ay + by) / 4 + y / 2;
  return [0.2, 0.4, 0.6, 0.8].map((s) => [
    ax * (1 - s) ** 2 + 2 * cx * s * (1 - s) + bx * s ** 2,
    ay * (1 - s) ** 2 + 2 * cy * s * (1 - s) + by * s ** 2,
  ]);
}

/** Lengths along a polyline, and the point at a share of it. */
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

/** The head of an arrow at the end of a polyline. */
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
