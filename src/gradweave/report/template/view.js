/* One schedule on the page: its drawing, timeline, heat map and table. */

const TABLE_ROWS = 400;
/** While playing by seconds, holdings and link use are redrawn at most once in HELD_MS, and for at most one part in HELD_PART of the time: on large networks that is slow. */
const HELD_MS = 100, HELD_PART = 5;

/** Creates a schedule's view from the page's template; the parts of the first view also have ids. */
function makeView(raw, index, several, page) {
  const root = document.importNode(byId("view").content, true).firstElementChild;
  const part = (name) => root.querySelector(`[data-part="${name}"]`);
  if (!index) for (const one of root.querySelectorAll("[data-part]")) one.id = one.dataset.part;
  byId("views").append(root);
  const schedule = readSchedule(raw);
  const hues = pieceHues(schedule.root.length);
  const colour = (piece) => `oklch(${themedLightness() + hues[piece].shade * 0.09} 0.135 ${hues[piece].hue.toFixed(1)})`;
  const held = contributions(schedule), load = linkLoad(schedule);
  const view = {
    root, part, schedule, held, load, colour, page, several,
    name: raw.name || raw.scheduler, settled: null, heldNext: 0, server: null, enlarged: false,
  };
  view.matrix = holdingsMatrix(schedule, part("holdings"), colour);
  view.timeline = loadTimeline(schedule, part("timeline"), load, page.rounds);
  view.use = useChart(schedule, part("use"));
  redrawNetwork(view);
  view.camera = cameraOf(part("network"), () => view.network.geometry, (zoom) => { part("fit").disabled = zoom === 1; part("closer").disabled = zoom >= MOST_ZOOM; });
  fillView(view);
  listenTo(view);
  return view;
}

/** Lightness of the pieces' colours in the theme. */
function themedLightness() {
  return Number(themed("--piece-lightness")) || 0.62;
}

/** Fills the constant parts. */
function fillView(view) {
  const { part, schedule, page, several } = view;
  const { raw } = schedule;
  view.root.classList.toggle("many", schedule.servers.length > 60);
  part("which").hidden = !several;
  if (several) {
    for (const whose of view.root.querySelectorAll(".whose")) whose.textContent = ` · ${view.name}`;
    part("which-name").textContent = view.name;
    if (raw.known) element("small", raw.known, part("which-name"));
    part("which-how").textContent = [given.title === raw.network ? "" : raw.network, provenance(raw), raw.options].filter(Boolean).join(" · ");
  }
  showFacts(several ? part("which-facts") : byId("facts"), factsOf(schedule, page.gradientBytes, several));
  part("transfers-of").hidden = false;
  const ringed = Boolean(view.part("network").querySelector(".slice"));
  const legend = part("server-legend");
  element("b", "server", legend);
  legend.append(ringed ? `: a slice for each piece${sizesDiffer(schedule) ? ", as large as its share" : ""}, full when its sum is complete` : `: dark arc, the share of ${schedule.gets ? "what it must have" : sizesDiffer(schedule) ? "the gradient" : "pieces"} that is complete`);
  part("switch-legend").hidden = ![...schedule.nodes.server.keys()].some((node) => !schedule.nodes.server[node] && !schedule.isBar(node));
  part("bar-legend").hidden = ![...schedule.nodes.server.keys()].some(schedule.isBar);
  showBandwidths(schedule, part("bandwidths"));
  if (!several) showProse(schedule, part("prose"));
  part("prose").hidden = several;
  showUse(schedule, part("use-words"));
  part("use-of").hidden = !raw.use.links.length;
  part("shares-of").hidden = !rootsDiffer(schedule);
  if (rootsDiffer(schedule)) showShares(schedule, part("shares"), part("shares-words"));
  const aggregate = isAggregate(schedule.servers.length, schedule.root.length);
  part("ramp").classList.toggle("scaled", aggregate);
  part("enlarge").hidden = !aggregate;
}

/** Draws the network from scratch. */
function redrawNetwork(view) {
  const root = view.part("network");
  view.width = drawingWidth(root);
  view.network = drawNetwork(view.schedule, root, view.colour, view.width);
  view.camera?.apply();
}

/** Width of the drawing in its units: fewer on small screens, so that everything is larger. */
function drawingWidth(root) {
  const room = root.parentElement.clientWidth;
  return room < 520 ? 540 : room < 640 ? 760 : 1000;
}

/** Contributions held now. */
function heldNow({ held, page, settled }) {
  return page.state.clock === "seconds" ? held.inTime().at(page.state.now) : held.after(settled ?? START);
}

/** Shows a moment: its text, the active transfers, the data that has arrived. */
function showMomentOf(view) {
  const { part, schedule, page, network } = view;
  const { now, piece, playing } = page.state;
  part("now").setAttribute("aria-live", playing ? "off" : "polite");
  const left = network.showMoment(now, piece);
  const active = network.transfers();
  const stage = stagesOf(schedule, active);
  part("now").textContent = `${duration(Math.min(now, schedule.seconds))} of ${duration(schedule.seconds)}${stage ? ` · ${stage}` : ""}`;
  const missing = left ? ` ${left.toLocaleString("en")} more are not drawn.` : "";
  const over = now >= schedule.seconds;
  part("caption").textContent = over ? "Every server holds everything that it must hold." : `${counted(active.length, "transfer")} under way.${missing}`;
  part("load").textContent = part("takes").textContent = "";
  part("transfers-of").textContent = "Transfers under way";
  if (part("details").open && !playing) showTable(view);
  const started = performance.now();
  if (playing && !over && started < view.heldNext) return;
  view.use.draw(START, now);
  const arrived = `${view.held.inTime().arrived(now)} arrived`;
  if (view.settled !== arrived) {
    view.settled = arrived;
    showHoldings(view);
  }
  view.heldNext = started + Math.max(HELD_MS, HELD_PART * (performance.now() - started));
}

/** Redraws a round: text, drawing, table. */
function showRoundOf(view) {
  if (view.page.state.clock === "seconds") return showMomentOf(view);
  const { part, schedule, page, load, network } = view;
  const { round, piece } = page.state;
  const here = Math.min(round, schedule.rounds);
  part("now").setAttribute("aria-live", page.state.playing ? "off" : "polite");
  part("now").textContent = headingOf(schedule, here);
  const left = network.showRound(here, piece);
  const missing = left ? ` ${left.toLocaleString("en")} transfers are not drawn.` : "";
  const done = here >= schedule.rounds;
  part("caption").textContent = (done ? "Every server holds everything that it must hold." : caption(schedule, here, piece)) + missing;
  network.showTree(here, piece);
  const busy = here >= 0 && !done ? load.reduce[here] + load.copy[here] : 0;
  part("load").textContent = here >= 0 && !done ? `Link load ${busy.toLocaleString("en")} of ${load.capacity.toLocaleString("en")}, ${Math.round((100 * busy) / load.capacity)} %.` : "";
  part("takes").textContent = timing(schedule, here);
  view.settled = null;
  part("transfers-of").textContent = "Transfers of this round";
  view.timeline.draw(here);
  view.use.draw(here);
  if (part("details").open) showTable(view);
  showProgressOf(view);
}

/** Shows the progress of a round: moving dots, and holdings once they arrive. */
function showProgressOf(view) {
  if (view.page.state.clock === "seconds") return showMomentOf(view);
  const { progress, round, playing } = view.page.state;
  view.network.move(progress, progress >= 1 && !playing);
  const here = Math.min(round, view.schedule.rounds);
  const arrived = progress >= 0.96 ? here : Math.max(START, here - 1);
  if (arrived === view.settled) return;
  view.settled = arrived;
  showHoldings(view);
}

/** Draws holdings in the servers and the heat map. */
function showHoldings(view) {
  const { held, part, page, schedule } = view;
  const round = page.state.clock === "rounds" ? (view.settled ?? START) : START;
  const now = heldNow(view);
  view.network.hold(now);
  const fresh = round > START && round === page.state.round;
  view.matrix.draw(now, fresh ? held.after(round - 1) : null, { piece: page.state.piece, server: view.server, enlarged: view.enlarged });
  const complete = held.complete(now).reduce((sum, c) => sum + c, 0);
  const cells = schedule.servers.reduce((sum, _, server) => sum + held.asked(server), 0);
  const marked = schedule.gets ? `as many as contribute when complete${isAggregate(held.servers, held.pieces) ? "" : "; underlined where the demand requires it"}` : `${held.servers} when complete`;
  part("held").textContent = `Rows are servers, columns pieces; each cell counts contributions, ${marked}. Complete now: ${complete.toLocaleString("en")} of ${cells.toLocaleString("en")}.`;
}

/** Fills the table of the round's transfers. */
function showTable({ part, schedule, colour, page, network }) {
  const listed = page.state.clock === "seconds" ? network.transfers() : between(...transfersOf(schedule, page.state.round));
  const rows = document.createDocumentFragment();
  let shown = 0, matching = 0;
  for (const t of listed) {
    if (page.state.piece !== null && schedule.piece[t] !== page.state.piece) continue;
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
  part("rows").replaceChildren(rows);
  part("more").textContent = matching > shown ? `and ${(matching - shown).toLocaleString("en")} more` : "";
  part("count").textContent = `(${listed.length.toLocaleString("en")})`;
}

/** Shows a tooltip next to the pointer, or hides it. */
function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line, index) => element(index ? "p" : "strong", line, null)));
  const room = document.documentElement.clientWidth;
  tip.style.left = `${Math.max(8, Math.min(x + 14, room - tip.offsetWidth - 12))}px`;
  tip.style.top = `${Math.min(y + 16, innerHeight - tip.offsetHeight - 8)}px`;
}

/** The tooltip of a node or a link in this round. */
function describe(view, found) {
  const { schedule, held, network } = view;
  if (found.node !== undefined) {
    const kind = schedule.nodes.server[found.node] ? "server" : "switch";
    const lines = [`${kind} ${schedule.name(found.node)}`];
    if (kind === "server") lines.push(`rank ${held.row[found.node]}, id ${found.node}`);
    else if (schedule.named) lines.push(`id ${found.node}`);
    if (kind === "server" && rootsDiffer(schedule)) lines.push(`roots ${percent(schedule.rooted[held.row[found.node]].share)} of the gradient`);
    if (kind === "switch") return [...lines, "forwards only"];
    const complete = held.complete(heldNow(view))[held.row[found.node]];
    return [...lines, `${complete} of ${counted(held.asked(held.row[found.node]), "piece")} complete`];
  }
  const { source, target, capacity, band } = schedule.links;
  const both = [found.link, schedule.linkBetween(target[found.link], source[found.link])];
  const carried = network.load();
  return [`link ${schedule.name(source[found.link])} – ${schedule.name(target[found.link])}`, ...both.map((link) =>
    `${schedule.name(source[link])} → ${schedule.name(target[link])}: ${schedule.raw.bands[band[link]] ?? ""}, carries ${carried.get(link) ?? 0} of ${capacity[link]}`)];
}

/** Highlights the object under the pointer in the drawing. */
function pointAtNetwork(view, event) {
  const matrixToScreen = view.part("network").getScreenCTM();
  if (!matrixToScreen) return;
  const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrixToScreen.inverse());
  const found = view.network.at(point.x, point.y);
  showTip(found && describe(view, found), event.clientX, event.clientY);
  const server = found?.node !== undefined && view.schedule.nodes.server[found.node] ? view.held.row[found.node] : null;
  if (server === view.server) return;
  view.server = server;
  showHoldings(view);
}

/** Shows the content of a cell of the heat map. */
function pointAtMatrix(view, event) {
  const { part, matrix, held, schedule } = view;
  const box = part("holdings").getBoundingClientRect();
  const cell = matrix.at(event.clientX - box.left, event.clientY - box.top);
  if (!cell) return showTip(null);
  const value = heldNow(view)[cell.server * held.pieces + cell.piece];
  const name = schedule.name(schedule.servers[cell.server]);
  const size = sizesDiffer(schedule) ? `, ${percent(schedule.share[cell.piece])} of ${schedule.gets ? "all bytes" : "the gradient"}` : "";
  const at = cell.server * held.pieces + cell.piece;
  const role = schedule.gets ? [[schedule.gives[at] && "contributes", schedule.gets[at] && "must receive it"].filter(Boolean).join(", ") || "neither contributes nor receives it"] : [];
  showTip([`server ${name}, piece ${cell.piece}${size}`, `rank ${cell.server}, id ${schedule.servers[cell.server]}`, `${value} of ${schedule.need[cell.piece]} contribution${schedule.need[cell.piece] === 1 ? "" : "s"}`, ...role, "click to follow this piece"], event.clientX, event.clientY);
}

/** Connects a view's controls. */
function listenTo(view) {
  const { part, page } = view;
  const on = (name, type, act) => part(name).addEventListener(type, act);
  on("details", "toggle", () => showTable(view));
  on("timeline", "pointerdown", (event) => page.jump(view.timeline.at(event.offsetX)));
  on("use", "pointermove", (event) => {
    const words = view.use.at(event.offsetY);
    showTip(words, event.clientX, event.clientY);
  });
  on("use", "pointerleave", () => showTip(null));
  on("network", "pointermove", (event) => pointAtNetwork(view, event));
  on("network", "pointerdown", (event) => pointAtNetwork(view, event));
  on("network", "pointerleave", () => { showTip(null); view.server = null; showHoldings(view); });
  on("closer", "click", () => view.camera.zoomBy(1.6));
  on("farther", "click", () => view.camera.zoomBy(1 / 1.6));
  on("fit", "click", () => view.camera.reset());
  on("enlarge", "click", () => {
    view.enlarged = !view.enlarged;
    part("enlarge").setAttribute("aria-pressed", String(view.enlarged));
    showHoldings(view);
  });
  on("holdings", "pointermove", (event) => pointAtMatrix(view, event));
  on("holdings", "pointerleave", () => showTip(null));
  on("holdings", "click", (event) => {
    const cell = view.matrix.at(event.offsetX, event.offsetY);
    if (cell) page.follow(cell.piece === page.state.piece ? null : cell.piece);
  });
  const point = (event) => {
    const row = event.target.closest("tr");
    view.network.highlight(row ? Number(row.dataset.transfer) : null);
  };
  for (const type of ["pointerover", "focusin"]) on("rows", type, point);
  for (const type of ["pointerleave", "focusout"]) on("rows", type, () => view.network.highlight(null));
  on("rows", "click", (event) => { if (event.target.dataset.piece) page.follow(Number(event.target.dataset.piece)); });
}

/** Adapts a view to a new size and redraws everything. */
function resizeView(view) {
  view.timeline.draw(Math.min(view.page.state.round, view.schedule.rounds));
  if (view.page.state.clock === "seconds") view.use.draw(START, view.page.state.now);
  else view.use.draw(Math.min(view.page.state.round, view.schedule.rounds));
  if (view.width !== drawingWidth(view.part("network"))) {
    redrawNetwork(view);
    showRoundOf(view);
  } else showHoldings(view);
  view.camera.apply();
}
