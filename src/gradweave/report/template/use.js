/* Where time goes: the load of the busiest link directions over time, in the event model. */

const USE_ROW = 20;
const USE_AXIS = 20;

/** The chart: returns a function that draws it and a function that describes a row. */
function useChart(schedule, canvas) {
  const { use } = schedule.raw;
  const levels = unpack(use.levels), first = unpack(use.roundFirst), last = unpack(use.roundLast);
  const names = use.links.map(({ link }) => linkName(schedule, link));
  const draw = (round, now = null) => {
    if (!names.length) return;
    const width = Math.max(200, canvas.parentElement.clientWidth);
    const context = freshCanvas(canvas, width, names.length * USE_ROW + USE_AXIS);
    context.font = `12px ${themed("--sans")}`;
    const left = Math.min(width * 0.4, 14 + Math.max(...names.map((name) => context.measureText(name).width)));
    const box = { left, right: width - 46, seconds: use.seconds };
    drawAxis(context, box, names.length * USE_ROW);
    if (round >= 0 && round < schedule.rounds) drawNow(context, box, names.length, first[round], last[round]);
    names.forEach((name, row) => {
      drawName(context, box, row, name, use.links[row].used);
      drawLevels(context, box, row, levels.subarray(2 * row * use.stretches, 2 * (row + 1) * use.stretches), use.stretches);
    });
    if (now !== null) drawCursorAt(context, box, names.length, Math.min(now, use.seconds));
  };
  const at = (y) => {
    const row = Math.floor(y / USE_ROW);
    return row < 0 || row >= names.length ? null : [names[row], ...waitsOf(use.links[row])];
  };
  return { draw, at };
}

/** A link direction by its nodes' names. */
function linkName(schedule, link) {
  return `${schedule.name(schedule.links.source[link])} → ${schedule.name(schedule.links.target[link])}`;
}

/** The time span of the current round's transfers. */
function drawNow(context, box, rows, from, to) {
  const x = (seconds) => box.left + ((box.right - box.left) * seconds) / box.seconds;
  context.fillStyle = themed("--accent");
  const wide = Math.max(1.5, x(to) - x(from));
  context.globalAlpha = 0.16;
  context.fillRect(x(from), 0, wide, rows * USE_ROW);
  context.globalAlpha = 1;
  context.fillRect(x(from), rows * USE_ROW, wide, 3);
}

/** The time that the page shows. */
function drawCursorAt(context, box, rows, now) {
  context.fillStyle = themed("--ink");
  context.fillRect(box.left + ((box.right - box.left) * now) / box.seconds - 0.75, 0, 1.5, rows * USE_ROW + 3);
}

/** A row's link and its utilisation. */
function drawName(context, box, row, name, used) {
  const middle = (row + 0.5) * USE_ROW;
  context.textBaseline = "middle";
  context.fillStyle = themed("--ink");
  context.textAlign = "right";
  context.fillText(name, box.left - 9, middle, box.left - 10);
  context.fillStyle = themed("--muted");
  context.textAlign = "left";
  context.fillText(percent(used), box.right + 7, middle);
}

/** The load of a link over time, from the bottom of the row: reduces strong, copies pale; it is idle where nothing is drawn. */
function drawLevels(context, box, row, levels, stretches) {
  const high = USE_ROW - 6, foot = (row + 1) * USE_ROW - 3;
  const left = Math.round(box.left), wide = Math.round(box.right) - left;
  context.fillStyle = themed("--cell");
  context.fillRect(left, foot - high, wide, high);
  const [strong, pale] = [themed("--many"), themed("--use-copy")];
  for (let x = 0; x < wide; x++) {
    const [from, to] = [x, x + 1].map((edge) => Math.floor((edge * stretches) / wide));
    const reduce = high * meanLevel(levels, from, to), copy = high * meanLevel(levels, stretches + from, stretches + to);
    context.fillStyle = strong;
    context.fillRect(left + x, foot - reduce, 1, reduce);
    context.fillStyle = pale;
    context.fillRect(left + x, foot - reduce - copy, 1, copy);
  }
}

/** The mean of some levels, or the first level for an empty range. */
function meanLevel(levels, from, to) {
  let sum = 0;
  const end = Math.max(from + 1, to);
  for (let i = from; i < end; i++) sum += levels[i];
  return sum / (end - from) / 255;
}

/** Seconds under the rows. */
function drawAxis(context, box, top) {
  const step = niceStep(box.seconds / Math.max(2, (box.right - box.left) / 110));
  context.fillStyle = context.strokeStyle = themed("--muted");
  context.textBaseline = "top";
  for (let tick = 0; tick * step <= box.seconds * 1.0001; tick++) {
    const x = box.left + ((box.right - box.left) * tick * step) / box.seconds;
    context.fillRect(x - 0.5, top, 1, 4);
    context.textAlign = tick ? "center" : "left";
    context.fillText(tick ? duration(tick * step) : "0", x, top + 6);
  }
}

/** A step of 1, 2 or 5 times a power of ten, at least as large as given. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= least * 0.999);
}

/** A link's idle times in words. */
function waitsOf({ used, before_s: before, between_s: between, gaps, longest_s: longest, after_s: after }) {
  return [
    `carries ${percent(used)} of its capacity`,
    before && `idle ${duration(before)} before its first transfer`,
    gaps && `idle ${duration(between)} in ${counted(gaps, "gap")}${gaps > 1 ? `, the longest ${duration(longest)}` : ""}`,
    after && `idle ${duration(after)} after its last`,
  ].filter(Boolean);
}

/** A description of the chart, with details of the busiest link. */
function showUse(schedule, hint) {
  const { links, seconds } = schedule.raw.use;
  if (!links.length) return;
  const [first] = links, others = schedule.links.source.length - links.length;
  const all = others > 0 ? `The ${links.length === 1 ? "busiest link direction" : `${links.length} busiest link directions`} of ${schedule.links.source.length.toLocaleString("en")}` : "All link directions";
  hint.textContent = `${all} over the ${duration(seconds)} that the schedule takes without barriers: strong where they reduce, pale where they copy, with the used share of their bandwidth as height; elsewhere they are idle. `
    + `${linkName(schedule, first.link)} ${waitsOf(first).join("; ")}. Shaded: while the current round's transfers are under way.`;
}
