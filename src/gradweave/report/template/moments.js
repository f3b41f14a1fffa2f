/* A schedule by seconds: the active transfers, their lanes, and the data that has arrived. */

/** The transfers under way at a time; fast if times ascend. */
function transfersInTime({ begin, end, transfers }) {
  const order = Uint32Array.from({ length: transfers }, (_, t) => t).sort((a, b) => begin[a] - begin[b] || a - b);
  const active = new Set();
  let at = 0, then = -Infinity;
  return (now) => {
    if (now < then) {
      active.clear();
      at = 0;
    }
    then = now;
    for (; at < transfers && begin[order[at]] <= now; at++) if (end[order[at]] > now) active.add(order[at]);
    for (const t of active) if (end[t] <= now) active.delete(t);
    return active;
  };
}

/** The data that has arrived by a time: a function from seconds to the number of transfers and to contributions held, as in `contributions`. */
function heldInTime({ schedule, start, sent, row }) {
  const { end, transfers, piece, target, op } = schedule, pieces = schedule.root.length;
  const order = Uint32Array.from({ length: transfers }, (_, t) => t).sort((a, b) => end[a] - end[b] || a - b);
  const ends = Float32Array.from(order, (t) => end[t]);
  let done = 0, held = start.slice();
  const arrived = (now) => {
    let low = 0, high = transfers;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] > now) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  const at = (now) => {
    const due = arrived(now);
    if (due < done) {
      held = start.slice();
      done = 0;
    }
    for (; done < due; done++) {
      const t = order[done], cell = row[target[t]] * pieces + piece[t];
      held[cell] = op[t] ? sent[t] : held[cell] + sent[t];
    }
    return held;
  };
  return { arrived, at };
}

/**
 * Lanes that transfers keep from start to end: on a link the lowest lane that is free at the start, on a bar the lowest
 * without an overlapping transfer. Returns a transfer's points, and the width of tracks.
 */
function lanesInTime(schedule, geometry) {
  const { begin, end, transfers } = schedule;
  const order = Uint32Array.from({ length: transfers }, (_, t) => t).sort((a, b) => begin[a] - begin[b] || a - b);
  const onLink = new Map(), onBar = new Map();
  const laneOf = new Map(), barLaneOf = new Map();
  const lowest = (taken) => { let lane = 0; while (taken(lane)) lane++; return lane; };
  const placed = (key, group, clash) => {
    if (!group.has(key)) group.set(key, { lanes: [], most: 0 });
    const { lanes } = group.get(key);
    const lane = lowest((i) => (lanes[i] ??= []).some(clash));
    group.get(key).most = Math.max(group.get(key).most, lane + 1);
    return { lane, spans: lanes[lane] };
  };
  for (const t of order) {
    const route = schedule.routeOf(t), now = begin[t];
    const lanes = [], barLanes = [];
    for (let i = 0; i + 1 < route.length; i++) {
      const { lane, spans } = placed(schedule.linkBetween(route[i], route[i + 1]), onLink, (span) => span.until > now);
      spans.splice(0, spans.length, { until: end[t] });
      lanes.push(lane);
      if (!i || !schedule.isBar(route[i])) continue;
      const [from, to] = spanOnBar(schedule, geometry, route, i), clear = geometry.radius * 0.5;
      const on = placed(route[i], onBar, (span) => span.until > now && span.from <= to + clear && from <= span.to + clear);
      on.spans.splice(0, on.spans.length, ...on.spans.filter((span) => span.until > now), { from, to, until: end[t] });
      barLanes[i] = on.lane;
    }
    laneOf.set(t, lanes);
    barLaneOf.set(t, barLanes);
  }
  const apart = (bar) => Math.min(geometry.stroke * 1.9 + 0.6, geometry.room[bar] / onBar.get(bar).most);
  let stroke = geometry.stroke;
  for (const bar of onBar.keys()) stroke = Math.max(0.7, Math.min(stroke, apart(bar) * 0.72));
  const points = (t) => {
    const route = schedule.routeOf(t);
    const offsets = laneOf.get(t).map((lane, i) => laneOffset(geometry, lane, onLink.get(schedule.linkBetween(route[i], route[i + 1])).most));
    const lanes = barLaneOf.get(t).map((lane, i) => (lane - (onBar.get(route[i]).most - 1) / 2) * apart(route[i]));
    return routePoints(schedule, geometry, route, offsets, lanes);
  };
  return { points, stroke };
}

/** Draws a transfer with the elements of a finished transfer, since creating elements is slow. Returns whether there were any. */
function redrawn(drawing, one, left, label) {
  const { schedule, colour, stroke: width } = drawing;
  const at = left.findLastIndex((other) => schedule.op[other.t] === schedule.op[one.t]);
  if (at < 0) return false;
  const [{ track, dot }] = left.splice(at, 1);
  const [line, head] = track.children, paint = colour(schedule.piece[one.t]);
  track.classList.remove("hot");
  line.setAttribute("d", pathData(one.points));
  line.setAttribute("stroke", paint);
  head.setAttribute("d", arrowHead(one.points, width * 2.8 + 1));
  head.setAttribute("fill", paint);
  if (dot) {
    const [shape, text] = dot.children;
    dot.classList.remove("hot");
    shape.setAttribute(schedule.op[one.t] ? "stroke" : "fill", paint);
    if (text) text.textContent = String(label);
  }
  Object.assign(one, { track, dot });
  return true;
}

/** Draws the transfers under way at a time at their positions. Returns the number left out. */
function showMoment(drawing, now, piece) {
  const { schedule, tracks, dots } = drawing;
  const time = (drawing.time ??= { active: transfersInTime(schedule), lanes: lanesInTime(schedule, drawing.geometry), shown: new Map(), piece: null });
  if (drawing.clock !== "seconds" || time.piece !== piece) {
    for (const layer of [tracks, dots, drawing.tree]) layer.replaceChildren();
    Object.assign(drawing, { clock: "seconds", stroke: time.lanes.stroke, dotPaths: null, load: new Map() });
    Object.assign(time, { shown: new Map(), piece });
    dots.classList.remove("resting");
  }
  const active = time.active(now);
  const carry = (t, change) => eachLink(schedule, schedule.routeOf(t), (link) => drawing.load.set(link, (drawing.load.get(link) ?? 0) + change));
  const left = [[], []];
  for (const [t, one] of time.shown) {
    if (active.has(t)) continue;
    left[one.dim ? 0 : 1].push(one);
    time.shown.delete(t);
    carry(t, -1);
  }
  const labelled = drawing.geometry.radius >= 25 && active.size <= 200;
  for (const t of active) {
    if (time.shown.has(t) || time.shown.size >= MAX_TRACKS) continue;
    const dim = piece !== null && schedule.piece[t] !== piece;
    const one = { t, dim, ...measured(time.lanes.points(t)) };
    const label = labelled ? schedule.piece[t] : "";
    if (!redrawn(drawing, one, left[dim ? 0 : 1], label)) {
      one.track = drawTrack(drawing, one, dim ? "dim" : "", tracks);
      one.dot = dim ? null : drawDot(drawing, t, label, dots);
    }
    time.shown.set(t, one);
    carry(t, 1);
  }
  for (const one of left.flat()) {
    one.track.remove();
    one.dot?.remove();
  }
  for (const { t, dot, at } of time.shown.values()) {
    if (!dot) continue;
    const [x, y] = at((now - schedule.begin[t]) / (schedule.end[t] - schedule.begin[t]));
    dot.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
  }
  drawing.moving = [...time.shown.values()];
  return active.size - time.shown.size;
}
