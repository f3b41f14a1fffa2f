/* The load of links in each round, above the scrubber and aligned with it. */

const THUMB = 18;
const SIDE = 14;

/** The chart: returns a function that draws it and a function that finds a round. */
function loadTimeline(schedule, canvas, load, rounds) {
  const height = 90, base = 82, top = 36;
  const width = () => Math.max(160, canvas.parentElement.clientWidth);
  const place = (round) => SIDE + THUMB / 2 + ((width() - 2 * SIDE - THUMB) * (round + 1)) / Math.max(1, rounds);
  const draw = (round) => {
    const context = freshCanvas(canvas, width(), height);
    context.font = `11px ${themed("--sans")}`;
    drawCeiling(context, width(), top);
    drawBars(context, schedule, load, { place, base, top, round });
    drawStages(context, schedule, place);
    drawCursor(context, place(round), base);
    nameCeiling(context, width(), top);
  };
  const at = (x) => Math.max(START, Math.min(rounds - 1, START + Math.round((rounds * (x - place(START))) / (place(rounds - 1) - place(START) || 1))));
  return { draw, at };
}

/** The line that no load exceeds. */
function drawCeiling(context, width, top) {
  context.strokeStyle = themed("--line");
  context.setLineDash([2, 4]);
  context.beginPath();
  context.moveTo(SIDE, top + 0.5);
  context.lineTo(width - SIDE, top + 0.5);
  context.stroke();
  context.setLineDash([]);
}

/** The label of that line, readable over the cursor. */
function nameCeiling(context, width, top) {
  context.textAlign = "right";
  context.textBaseline = "bottom";
  context.lineWidth = 4;
  context.strokeStyle = themed("--paper");
  context.strokeText("all link directions", width - SIDE, top - 2);
  context.fillStyle = themed("--muted");
  context.fillText("all link directions", width - SIDE, top - 2);
}

/** One bar per round, or the highest of several rounds: reduces filled, copies open, stacked if a round has both. */
function drawBars(context, schedule, load, { place, base, top, round }) {
  const pitch = place(0) - place(START);
  const bar = Math.max(1, Math.min(26, pitch * 0.72));
  const ink = themed("--bar"), strong = themed("--accent");
  const high = (value) => (value / load.capacity) * (base - top);
  const skip = Math.max(1, Math.floor(1 / pitch));
  const total = (r) => load.reduce[r] + load.copy[r];
  for (let first = 0; first < schedule.rounds; first += skip) {
    let r = first;
    for (let other = first; other < Math.min(first + skip, schedule.rounds); other++) if (total(other) > total(r)) r = other;
    const x = place(r) - bar / 2;
    const reduce = high(load.reduce[r]), copy = high(load.copy[r]);
    context.fillStyle = context.strokeStyle = r === round ? strong : ink;
    context.fillRect(x, base - reduce, bar, reduce);
    if (!copy) continue;
    context.globalAlpha = 0.3;
    context.fillRect(x, base - reduce - copy, bar, copy);
    context.globalAlpha = 1;
    if (bar >= 4) context.strokeRect(x + 0.5, base - reduce - copy + 0.5, bar - 1, copy - 0.5);
  }
}

/** Names of the stages above their rounds, and a line at the end of a stage. */
function drawStages(context, schedule, place) {
  const { reduce_scatter: reduces, all_gather: gathers } = schedule.raw.stages;
  const spans = [], [adding, copying] = stageNames(schedule);
  if (reduces) spans.push([adding, -0.5, reduces - 0.5]);
  if (gathers) spans.push([copying, schedule.rounds - gathers - 0.5, schedule.rounds - 0.5]);
  const overlap = spans.length === 2 && spans[1][1] < spans[0][2];
  context.textBaseline = "middle";
  context.textAlign = "left";
  spans.forEach(([name, from, to], index) => {
    const y = overlap && index ? 20 : 8;
    const [a, b] = [Math.max(SIDE, place(from)) + 5, Math.min(place(schedule.rounds - 1) + SIDE, place(to)) - 4];
    context.fillStyle = themed("--muted");
    const wide = context.measureText(name).width;
    const fits = wide + 12 < b - a;
    if (fits) context.fillText(name, a, y);
    context.fillRect(fits ? a + wide + 6 : a, y, Math.max(1, b - a - (fits ? wide + 6 : 0)), 1);
  });
  if (spans.length < 2 || overlap) return;
  context.fillStyle = themed("--muted");
  context.fillRect(place(spans[0][2]) - 0.5, 3, 1, 79);
}

/** The current position of the page. */
function drawCursor(context, x, base) {
  context.fillStyle = themed("--accent");
  context.fillRect(x - 0.75, 16, 1.5, base - 10);
}
