/* The page: one state, what shows it, and what changes it. */

const ROUND_MS = 1500;
const TABLE_ROWS = 400;
const byId = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const schedule = readSchedule(JSON.parse(byId("data").textContent));
const hues = pieceHues(schedule.root.length);
const colour = (piece) => `oklch(${themedLightness() + hues[piece].shade * 0.09} 0.135 ${hues[piece].hue.toFixed(1)})`;
const held = contributions(schedule);
const load = linkLoad(schedule);
const state = { round: 0, progress: 1, playing: false, stepping: false, speed: 1, piece: null, server: null, settled: -1 };
let network, matrix, timeline;

/** Lightness of the pieces' colours in the theme. */
function themedLightness() {
  return Number(themed("--piece-lightness")) || 0.62;
}

/** Shows a round anew: words, drawing, table. */
function showNow() {
  const { round, piece } = state;
  const words = round ? `Round ${round} of ${schedule.rounds} · ${stageOf(schedule, round)}` : `Start · ${counted(schedule.rounds, "round")} to come`;
  byId("now").setAttribute("aria-live", state.playing ? "off" : "polite");
  byId("now").textContent = words;
  const left = network.showRound(round, piece);
  const missing = left ? ` ${left.toLocaleString("en")} transfers are not drawn.` : "";
  byId("caption").textContent = caption(round, piece) + missing;
  network.showTree(round, piece);
  const scrubber = byId("scrubber");
  scrubber.value = String(round);
  scrubber.setAttribute("aria-valuetext", words);
  const busy = load.reduce[round] + load.copy[round];
  byId("load").textContent = round ? `Link load: ${busy.toLocaleString("en")} of ${load.capacity.toLocaleString("en")}, ${Math.round((100 * busy) / load.capacity)} %.` : "";
  document.body.dataset.round = String(round);
  state.settled = -1;
  timeline.draw(round);
  if (byId("details").open) showTable();
  showProgress();
}

/** Shows how far the round is: dots on their way, holdings once they arrive. */
function showProgress() {
  const resting = state.progress >= 1 && !state.playing;
  network.move(state.progress, resting);
  const arrived = state.progress >= 0.96 ? state.round : Math.max(0, state.round - 1);
  if (arrived !== state.settled) {
    state.settled = arrived;
    showHoldings();
  }
}

/** Draws holdings in the servers and the heat map. */
function showHoldings() {
  const round = Math.max(0, state.settled);
  const now = held.after(round);
  network.hold(now);
  matrix.draw(now, round && round === state.round ? held.after(round - 1) : null, state);
  const complete = held.complete(now).reduce((sum, c) => sum + c, 0);
  const cells = held.servers * held.pieces;
  byId("held").textContent = `Rows are servers, columns pieces; each cell counts contributions, ${held.servers} when complete. Complete now: ${complete.toLocaleString("en")} of ${cells.toLocaleString("en")}.`;
}

/** Fills the table of the round's transfers. */
function showTable() {
  const [start, end] = transfersOf(schedule, state.round);
  const rows = document.createDocumentFragment();
  let shown = 0, matching = 0;
  for (let t = start; t < end; t++) {
    if (state.piece !== null && schedule.piece[t] !== state.piece) continue;
    if (++matching > TABLE_ROWS) continue;
    shown++;
    const row = element("tr", "", rows);
    row.tabIndex = 0;
    row.dataset.transfer = String(t);
    const button = element("button", String(schedule.piece[t]), element("td", "", row), "swatch");
    button.type = "button";
    button.dataset.piece = String(schedule.piece[t]);
    button.setAttribute("aria-label", `Follow piece ${schedule.piece[t]}`);
    button.style.setProperty("--swatch", colour(schedule.piece[t]));
    element("td", schedule.op[t] ? "copy" : "reduce", row);
    element("td", [...schedule.routeOf(t)].map(schedule.name).join(" → "), row);
  }
  byId("rows").replaceChildren(rows);
  byId("more").textContent = matching > shown ? `and ${(matching - shown).toLocaleString("en")} more` : "";
  byId("count").textContent = `(${(end - start).toLocaleString("en")})`;
}

/** Goes to a round, moving its transfers or with them arrived. */
function goTo(round, moving = false) {
  state.round = Math.max(0, Math.min(schedule.rounds, round));
  state.progress = moving && state.round > 0 && !calm.matches ? 0 : 1;
  state.stepping = state.progress < 1;
  network.highlight(null);
  showNow();
  if (state.stepping) run();
}

/** Starts or stops playing; a round that is stopped halfway waits there. */
function setPlaying(playing) {
  state.stepping = false;
  if (playing === state.playing) return;
  state.playing = playing;
  document.body.classList.toggle("playing", playing);
  byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  byId("now").setAttribute("aria-live", playing ? "off" : "polite");
  if (playing && state.round >= schedule.rounds && state.progress >= 1) goTo(0);
  else if (!playing) showProgress();
  run();
}

/** Follows one piece, or all. */
function follow(piece) {
  state.piece = piece;
  byId("piece").value = piece === null ? "" : String(piece);
  document.body.classList.toggle("following", piece !== null);
  showNow();
}

let frame = 0, lastTime = 0, waited = 0;

/** Runs the clock while something moves. */
function run() {
  cancelAnimationFrame(frame);
  lastTime = 0;
  frame = requestAnimationFrame(tick);
}

/** One frame: moves on by the time passed. */
function tick(time) {
  const step = lastTime ? ((time - lastTime) / ROUND_MS) * state.speed : 0;
  lastTime = time;
  if (state.progress < 1 && (state.playing || state.stepping)) {
    state.progress = Math.min(1, state.progress + step);
    waited = 0;
    showProgress();
  } else if (state.playing && (waited += step) > (state.round && !calm.matches ? 0.22 : 0.7)) {
    waited = 0;
    if (state.round < schedule.rounds) {
      state.round += 1;
      state.progress = calm.matches ? 1 : 0;
      showNow();
    } else setPlaying(false);
  }
  state.stepping &&= state.progress < 1;
  if (state.stepping || state.playing) frame = requestAnimationFrame(tick);
}

/** Shows a few words beside the pointer, or none. */
function showTip(lines, x, y, colours = []) {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line, index) => {
    const made = element(index ? "p" : "strong", line, null);
    if (colours[index]) made.style.setProperty("--swatch", colours[index]);
    return made;
  }));
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(8, Math.min(x + 14, room - tip.offsetWidth - 12))}px`;
  tip.style.top = `${y + 16}px`;
}

/** What a node or a link has to say in this round. */
function describe(found) {
  const now = held.after(Math.max(0, state.settled));
  if (found.node !== undefined) {
    const kind = schedule.nodes.server[found.node] ? "server" : "switch";
    const label = schedule.nodes.labels[found.node];
    const lines = [`${kind} ${found.node}${label ? ` (${label})` : ""}`];
    if (kind === "switch") return [...lines, "forwards only"];
    const complete = held.complete(now)[held.row[found.node]];
    return [...lines, `${complete} of ${counted(held.pieces, "piece")} complete`];
  }
  const { source, target, capacity } = schedule.links;
  const both = [found.link, schedule.linkBetween(target[found.link], source[found.link])];
  const carried = network.load();
  return [`link ${schedule.name(source[found.link])} – ${schedule.name(target[found.link])}`, ...both.map((link) =>
    `${schedule.name(source[link])} → ${schedule.name(target[link])}: carries ${carried.get(link) ?? 0} of ${capacity[link]}`)];
}

/** Points at what lies under the pointer in the drawing. */
function pointAtNetwork(event) {
  const root = byId("network");
  const matrixToScreen = root.getScreenCTM();
  if (!matrixToScreen) return;
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrixToScreen.inverse());
  const found = network.at(point.x, point.y);
  showTip(found && describe(found), event.clientX, event.clientY);
  const server = found?.node !== undefined && schedule.nodes.server[found.node] ? held.row[found.node] : null;
  if (server !== state.server) {
    state.server = server;
    showHoldings();
  }
}

/** Says what a cell of the heat map holds. */
function pointAtMatrix(event) {
  const box = byId("holdings").getBoundingClientRect();
  const cell = matrix.at(event.clientX - box.left, event.clientY - box.top);
  if (!cell) return showTip(null);
  const value = held.after(Math.max(0, state.settled))[cell.server * held.pieces + cell.piece];
  const name = schedule.name(schedule.servers[cell.server]);
  showTip([`server ${name}, piece ${cell.piece}`, `${value} of ${held.servers} contributions`, "click to follow this piece"], event.clientX, event.clientY);
}

/** Wires pointer and keyboard to the state. */
function listen() {
  const on = (id, type, act) => byId(id).addEventListener(type, act);
  const stop = (act) => () => { setPlaying(false); act(); };
  on("first", "click", stop(() => goTo(0)));
  on("back", "click", stop(() => goTo(state.round - 1)));
  on("forward", "click", stop(() => goTo(state.round + 1, state.round < schedule.rounds)));
  on("last", "click", stop(() => goTo(schedule.rounds)));
  on("play", "click", () => setPlaying(!state.playing));
  on("scrubber", "input", stop(() => goTo(Number(byId("scrubber").value))));
  on("speed", "change", () => { state.speed = Number(byId("speed").value); });
  on("piece", "change", () => follow(byId("piece").value === "" ? null : Number(byId("piece").value)));
  on("details", "toggle", showTable);
  on("timeline", "pointerdown", (event) => stop(() => goTo(timeline.at(event.offsetX)))());
  on("network", "pointermove", pointAtNetwork);
  on("network", "pointerdown", pointAtNetwork);
  on("network", "pointerleave", () => { showTip(null); state.server = null; showHoldings(); });
  on("holdings", "pointermove", pointAtMatrix);
  on("holdings", "pointerleave", () => showTip(null));
  on("holdings", "click", (event) => {
    const cell = matrix.at(event.offsetX, event.offsetY);
    if (cell) follow(cell.piece === state.piece ? null : cell.piece);
  });
  const point = (event) => {
    const row = event.target.closest("tr");
    network.highlight(row ? Number(row.dataset.transfer) : null);
  };
  on("rows", "pointerover", point);
  on("rows", "focusin", point);
  on("rows", "pointerleave", () => network.highlight(null));
  on("rows", "focusout", () => network.highlight(null));
  on("rows", "click", (event) => { if (event.target.dataset.piece) follow(Number(event.target.dataset.piece)); });
  document.addEventListener("keydown", onKey);
  let drawn = drawingWidth();
  const redraw = () => {
    timeline.draw(state.round);
    showHoldings();
    if (drawn === drawingWidth()) return;
    drawn = drawingWidth();
    redrawNetwork();
    showNow();
  };
  new ResizeObserver(redraw).observe(byId("timeline").parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { redrawNetwork(); showNow(); });
}

/** Keys: space, arrows, Home, End, Escape; controls that use a key themselves keep it. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const own = event.target.closest?.("select, input, button, summary");
  const ranged = own?.matches("input");
  if (own?.matches("select") || (own && !ranged && event.key === " ")) return;
  const acts = {
    " ": () => setPlaying(!state.playing),
    ArrowRight: () => { setPlaying(false); goTo(state.round + 1, state.round < schedule.rounds); },
    ArrowLeft: () => { setPlaying(false); goTo(state.round - 1); },
    Home: () => { setPlaying(false); goTo(0); },
    End: () => { setPlaying(false); goTo(schedule.rounds); },
    Escape: () => follow(null),
  };
  if (!acts[event.key] || (own && !ranged && event.key === "Escape")) return;
  event.preventDefault();
  acts[event.key]();
}

/** Draws the network from nothing. */
function redrawNetwork() {
  byId("network").replaceChildren();
  network = drawNetwork(schedule, byId("network"), colour, drawingWidth());
}

/** Width of the drawing in its own units: fewer on a narrow screen, so that everything is larger. */
function drawingWidth() {
  return byId("network").parentElement.clientWidth < 520 ? 540 : 1000;
}

redrawNetwork();
matrix = holdingsMatrix(schedule, byId("holdings"), colour);
timeline = loadTimeline(schedule, byId("timeline"), load);
showHead();
showFixed();
goTo(Number(/^#round=(\d{1,6})$/.exec(location.hash)?.[1] ?? 0));
listen();

/* For tests, and for the curious. */
window.gradweave = {
  rounds: schedule.rounds,
  round: () => state.round,
  progress: () => state.progress,
  playing: () => state.playing,
  goTo: (round, moving = false) => goTo(round, moving),
  follow,
  held: (round) => Array.from(held.after(round).subarray(0, held.servers * held.pieces)),
  complete: (round = state.round) => Array.from(held.complete(held.after(round))),
};
