/* What the page says in words; strings of the schedule become text, never markup. */

/** A number with its noun. */
function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** An element with text; text is never read as markup. */
function element(name, text, parent, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

/** Fills the head of the page. */
function showHead() {
  const { raw } = schedule;
  const collective = raw.collective.replace("_", "-");
  byId("title").textContent = raw.title;
  byId("kicker").textContent = `${collective} schedule · ${raw.scheduler}${raw.options ? ` (${raw.options})` : ""}`;
  const facts = byId("facts");
  const fact = (name, value, hint = "") => {
    const pair = element("div", "", facts);
    element("dt", name, pair);
    const definition = element("dd", value, pair);
    if (hint) pair.title = hint;
    return definition;
  };
  if (raw.title !== raw.network) fact("network", raw.network);
  fact("servers", String(schedule.servers.length));
  if (schedule.servers.length < schedule.count) fact("switches", String(schedule.count - schedule.servers.length));
  fact("links", (schedule.links.source.length / 2).toLocaleString("en"), "full-duplex");
  fact("transfers", schedule.transfers.toLocaleString("en"));
  if (raw.stages.reduce_scatter) fact("reduce-scatter", counted(raw.stages.reduce_scatter, "round"));
  if (raw.stages.all_gather) fact("all-gather", counted(raw.stages.all_gather, "round"));
  const rounds = fact("rounds", String(schedule.rounds));
  if (raw.seed !== null) fact("seed", raw.seed);
  if (raw.bound) {
    element("small", raw.bound.kind, fact("lower bound", String(raw.bound.rounds)));
    const gap = schedule.rounds - raw.bound.rounds;
    const badge = gap === 0 ? "optimal" : gap > 0 ? `+${gap}` : "below the bound";
    element("span", badge, rounds, gap === 0 ? "badge" : "badge gap").title = `bound: ${raw.bound.kind}`;
  }
}

/** Fills what never changes: explanations, choices, legend. */
function showFixed() {
  const pieces = schedule.root.length, gather = schedule.raw.collective === "all_gather";
  const prose = byId("prose");
  element("h3", "What you see", prose);
  const words = {
    reduce_scatter: `The gradient is cut into ${counted(pieces, "piece")}. In reduce-scatter, servers pass on partial sums and add them to their own, until each piece's root holds the sum of everyone's contributions.`,
    all_gather: `In all-gather, ${gather ? "each piece's root starts with the whole of it, and" : "each complete sum travels back from its root:"} copies overwrite what servers hold, until everyone has everything.`,
  };
  if (!gather) element("p", words.reduce_scatter, prose);
  if (schedule.raw.collective !== "reduce_scatter") element("p", words.all_gather, prose);
  element("p", "A transfer takes its whole route for one round, and a link direction carries no more than its capacity; fewer rounds mean that more links work at once.", prose);
  const legend = byId("server-legend");
  const ringed = Boolean(document.querySelector("#network .slice"));
  element("b", "server", legend);
  legend.append(ringed ? ": a slice for each piece, full when its sum is complete" : ": dark arc, the share of pieces complete");
  byId("switch-legend").hidden = schedule.servers.length === schedule.count;
  const choice = byId("piece");
  for (let piece = 0; piece < pieces; piece++) {
    element("option", `piece ${piece} (root ${schedule.name(schedule.root[piece])})`, choice).value = String(piece);
  }
  byId("scrubber").max = String(schedule.rounds);
  document.body.dataset.rounds = String(schedule.rounds);
}

/** What happens in the current round, in words. */
function caption(round, piece) {
  if (piece !== null) return `Following piece ${piece}, root ${schedule.name(schedule.root[piece])}; numbers are rounds.`;
  if (round === 0) {
    return schedule.raw.collective === "all_gather"
      ? "At the start each root holds its piece, and no one else holds anything."
      : "At the start each server holds only its own contribution to every piece.";
  }
  const [start, end] = transfersOf(schedule, round);
  let copies = 0;
  for (let t = start; t < end; t++) copies += schedule.op[t];
  const reduces = end - start - copies;
  const said = [
    reduces && `${counted(reduces, "transfer")} add${reduces === 1 ? "s" : ""} a partial sum into the target`,
    copies && `${counted(copies, "transfer")} ${copies === 1 ? "copies" : "copy"} a complete sum`,
  ].filter(Boolean);
  return said.length ? `${said.join("; ")}.` : "No transfer in this round.";
}
