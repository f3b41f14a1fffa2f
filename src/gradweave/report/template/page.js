/* The page: its state, the clock that advances it, and its controls. */

const ROUND_MS = 1500;
/** Seconds for playing the whole schedule by time; at real speed nothing could be seen. */
const WHOLE_MS = 20_000;
/** Number of positions of the scrubber. */
const SCRUBBED = 2000;
/** Pixels of a drawing's height, on a phone and elsewhere, below which a page scrolls rather than draw it even smaller. */
const LOWEST_DRAWING = [220, 280];
/** Pixels of a notebook's frame in which the drawing and the player fit. */
const FRAMED = 760;
const byId = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");

const given = JSON.parse(byId("data").textContent);
const state = { clock: "rounds", round: START, progress: 1, now: 0, playing: false, stepping: false, speed: 1, piece: null };
const page = {
  state, follow, jump, jumpToTime,
  gradientBytes: given.gradientBytes,
  rounds: Math.max(...given.schedules.map(({ rounds }) => rounds)),
  seconds: Math.max(...given.schedules.map(({ use }) => Math.fround(use.seconds))) || 1,
};
const last = page.rounds - 1;
let views = [];

const bySeconds = () => state.clock === "seconds";

/** Redraws every view for a round or a moment. */
function showNow() {
  const { round } = state;
  const scrubber = byId("scrubber");
  scrubber.value = String(bySeconds() ? Math.round((SCRUBBED * state.now) / page.seconds) : round);
  views.forEach(showRoundOf);
  scrubber.setAttribute("aria-valuetext", views[0].part("now").textContent);
  document.body.dataset.round = String(round);
}

/** Goes to a round, with its transfers moving or arrived. */
function goTo(round, moving = false) {
  state.round = Math.max(START, Math.min(last, round));
  state.progress = moving && state.round > START && !calm.matches ? 0 : 1;
  state.stepping = state.progress < 1;
  for (const view of views) view.network.highlight(null);
  showNow();
  if (state.stepping) run();
}

/** Goes to a time. */
function goToTime(now) {
  state.now = Math.max(0, Math.min(page.seconds, now));
  for (const view of views) view.network.highlight(null);
  showNow();
}

/** Goes to a time and stops there. */
function jumpToTime(now) {
  setPlaying(false);
  goToTime(now);
}

/** Goes to the previous or next time at which a transfer starts or ends. */
function stepTime(forwards) {
  let next = forwards ? page.seconds : 0;
  for (const { schedule } of views) {
    for (const times of [schedule.begin, schedule.end]) {
      for (const time of times) {
        if (forwards ? time > state.now && time < next : time < state.now && time > next) next = time;
      }
    }
  }
  jumpToTime(next);
}

/** Chooses between rounds and seconds, keeping the approximate position. */
function setClock(clock) {
  setPlaying(false);
  const [{ schedule }] = views, first = unpack(schedule.raw.use.roundFirst);
  if (clock === "seconds" && !bySeconds()) state.now = state.round < 0 ? 0 : (first[state.round] ?? page.seconds);
  else if (clock === "rounds" && bySeconds()) {
    state.round = state.now > 0 ? first.findLastIndex((time) => time <= state.now) : START;
    state.progress = 1;
  }
  state.clock = clock;
  byId("clock").value = clock;
  document.body.dataset.clock = clock;
  byId("scrubber").min = String(bySeconds() ? 0 : START);
  byId("scrubber").max = String(bySeconds() ? SCRUBBED : last);
  byId("scrubber").setAttribute("aria-label", bySeconds() ? "Time" : "Round");
  showNow();
}

/** Goes to a round and stops there. */
function jump(round, moving = false) {
  setPlaying(false);
  goTo(round, moving);
}

/** Starts or stops playing; a round that is stopped halfway stays there. */
function setPlaying(playing) {
  state.stepping = false;
  if (playing === state.playing) return;
  state.playing = playing;
  document.body.classList.toggle("playing", playing);
  byId("play").setAttribute("aria-label", playing ? "Pause" : "Play");
  for (const view of views) view.part("now").setAttribute("aria-live", playing ? "off" : "polite");
  if (bySeconds()) {
    if (playing && state.now >= page.seconds) goToTime(0);
    else showNow();
    return run();
  }
  if (playing && state.round >= last && state.progress >= 1) goTo(START);
  else if (!playing) views.forEach(showProgressOf);
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

/** One frame by seconds: advances by the elapsed time. */
function tickTime(time) {
  if (!state.playing) return;
  const step = lastTime ? ((time - lastTime) / WHOLE_MS) * state.speed * page.seconds : 0;
  lastTime = time;
  state.now = Math.min(page.seconds, state.now + step);
  showNow();
  if (state.now >= page.seconds) setPlaying(false);
  else frame = requestAnimationFrame(tick);
}

/** One frame: advances by the elapsed time. */
function tick(time) {
  if (bySeconds()) return tickTime(time);
  const step = lastTime ? ((time - lastTime) / ROUND_MS) * state.speed : 0;
  lastTime = time;
  if (state.progress < 1 && (state.playing || state.stepping)) {
    state.progress = Math.min(1, state.progress + step);
    waited = 0;
    views.forEach(showProgressOf);
  } else if (state.playing && (waited += step) > (state.round > START && !calm.matches ? 0.22 : 0.7)) {
    waited = 0;
    if (state.round < last) {
      state.round += 1;
      state.progress = calm.matches ? 1 : 0;
      showNow();
    } else setPlaying(false);
  }
  state.stepping &&= state.progress < 1;
  if (state.stepping || state.playing) frame = requestAnimationFrame(tick);
}

/** Functions that step through the schedule, by rounds or by seconds. */
const steps = {
  first: () => (bySeconds() ? jumpToTime(0) : jump(START)),
  back: () => (bySeconds() ? stepTime(false) : jump(state.round - 1)),
  forward: () => (bySeconds() ? stepTime(true) : jump(state.round + 1, state.round < last)),
  last: () => (bySeconds() ? jumpToTime(page.seconds) : jump(last)),
  scrub: (value) => (bySeconds() ? jumpToTime((value / SCRUBBED) * page.seconds) : jump(value)),
};

/** Connects pointer and keyboard to the state. */
function listen() {
  const on = (id, type, act) => byId(id).addEventListener(type, act);
  for (const id of ["first", "back", "forward", "last"]) on(id, "click", steps[id]);
  on("play", "click", () => setPlaying(!state.playing));
  on("scrubber", "input", () => steps.scrub(Number(byId("scrubber").value)));
  on("clock", "change", () => setClock(byId("clock").value));
  on("speed", "change", () => { state.speed = Number(byId("speed").value); });
  on("piece", "change", () => follow(byId("piece").value === "" ? null : Number(byId("piece").value)));
  document.addEventListener("keydown", onKey);
  new ResizeObserver(() => { fitDrawing(); views.forEach(resizeView); }).observe(byId("views"));
  addEventListener("resize", fitDrawing);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { THEME.clear(); views.forEach(redrawNetwork); showNow(); });
}

/** Keys of the page; controls that use a key themselves keep it. */
function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const own = event.target.closest?.("select, input, button, summary");
  const ranged = own?.matches("input");
  if (own?.matches("select") || (own && !ranged && event.key === " ")) return;
  const pan = (dx, dy) => () => views.forEach(({ camera }) => camera.panBy(dx, dy));
  const zoom = (factor) => () => views.forEach(({ camera }) => camera.zoomBy(factor));
  const acts = {
    " ": () => setPlaying(!state.playing),
    ArrowRight: steps.forward,
    ArrowLeft: steps.back,
    Home: steps.first,
    End: steps.last,
    Escape: () => follow(null),
    "+": zoom(1.6), "=": zoom(1.6), "-": zoom(1 / 1.6), 0: () => views.forEach(({ camera }) => camera.reset()),
  };
  const pans = { ArrowRight: pan(-60, 0), ArrowLeft: pan(60, 0), ArrowUp: pan(0, 60), ArrowDown: pan(0, -60) };
  const act = event.shiftKey && pans[event.key] ? pans[event.key] : acts[event.key];
  if (!act || (own && !ranged && event.key === "Escape")) return;
  event.preventDefault();
  act();
}

/** Limits the drawing's height so that the player under it is visible without scrolling. */
function fitDrawing() {
  if (views.length > 1) return; // there the player sticks to the top
  const drawing = views[0].part("network"), box = drawing.getBoundingClientRect();
  const under = byId("player").getBoundingClientRect().bottom - box.bottom;
  // A notebook's frame is made as tall as the page: the window's height would then only grow.
  const most = parent === self ? innerHeight : Math.min(innerHeight, FRAMED);
  const room = most - (box.top + scrollY) - under - 8;
  drawing.style.maxHeight = `${Math.max(LOWEST_DRAWING[Number(innerWidth > 700)], room)}px`;
}

/** Fills the head of the page and the menus, and puts the player under a single drawing. */
function furnish() {
  const [{ schedule, root }] = views;
  const several = views.length > 1;
  byId("title").textContent = given.title;
  byId("kicker").textContent = several ? "two schedules, in step" : provenance(schedule.raw);
  document.body.classList.toggle("several", several);
  byId("facts").hidden = several;
  byId("differences").hidden = !several;
  if (several) showDifferences(byId("differences-table"), views, page.gradientBytes);
  else root.querySelector(".stage .timeline").after(byId("player"));
  const pieces = Math.min(...views.map((view) => view.schedule.root.length));
  for (let piece = 0; piece < pieces; piece++) {
    const text = several ? `piece ${piece}` : schedule.gets ? pieceName(schedule, piece) : `piece ${piece} (root ${schedule.name(schedule.root[piece])})`;
    element("option", text, byId("piece")).value = String(piece);
  }
  document.body.dataset.rounds = String(page.rounds);
}

views = given.schedules.map((raw, index) => makeView(raw, index, given.schedules.length > 1, page));
furnish();
fitDrawing();
for (const view of views) view.camera.apply();
setClock(location.hash || !given.schedules.some(({ clock }) => clock === "seconds") ? "rounds" : "seconds");
if (!bySeconds()) goTo(Number(/^#round=(\d{1,6})$/.exec(location.hash)?.[1] ?? START));
listen();

/* For tests, and for the curious. */
window.gradweave = {
  rounds: page.rounds,
  round: () => state.round,
  progress: () => state.progress,
  playing: () => state.playing,
  zoom: (factor = 1) => { views[0].camera.zoomBy(factor); return views[0].camera.zoom(); },
  goTo: (round, moving = false) => {
    if (bySeconds()) setClock("rounds");
    goTo(round, moving);
  },
  clock: () => state.clock,
  setClock, goToTime,
  now: () => state.now,
  heldAt: (now) => Array.from(views[0].held.inTime().at(now).subarray(0, views[0].held.servers * views[0].held.pieces)),
  colour: (piece) => views[0].colour(piece),
  geometry: () => views[0].network.geometry,
  ways: () => views[0].network.ways(),
  follow,
  held: (round) => Array.from(views[0].held.after(round).subarray(0, views[0].held.servers * views[0].held.pieces)),
  complete: (round = state.round, view = 0) => Array.from(views[view].held.complete(views[view].held.after(round))),
};
