/* The texts of the page; strings from the schedule become text, never markup. */

/** A number with its noun. */
function counted(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
}

/** An element with text; text is never read as markup. */
function element(name, text, parent, className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  parent?.append(made);
  return made;
}

/** Seconds in a suitable unit. */
function duration(seconds) {
  const [unit, name] = seconds >= 1 ? [1, "s"] : seconds >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${Number((seconds / unit).toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 })} ${name}`;
}

/** Bytes in a suitable unit. */
function sized(bytes) {
  const power = bytes >= 1 ? Math.min(4, Math.floor(Math.log10(bytes) / 3)) : 0;
  return `${Number((bytes / 1000 ** power).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

/** A share as a percentage. */
function percent(share) {
  return `${Number((100 * share).toPrecision(share < 0.1 ? 1 : 2))}%`;
}

/** A short description of the links' bandwidths. */
function bandwidthOf({ bands }) {
  return bands.length === 1 ? bands[0] : `${bands[0]} to ${bands[bands.length - 1]}`;
}

/** The source of a bound: a certificate, the program that made the page and computed it, or a file. */
function boundSource({ kind, source, certified }) {
  if (source === "stated") return `${kind}, stated by the file, not checked`;
  return certified ? kind : `${kind}, ${source === "search" ? "by search, " : ""}not certified`;
}

/** The schedules that the bound holds for; empty if it holds for every schedule. */
function boundClass({ holds_for: some }) {
  return some === "every schedule" ? "" : ` for ${some}`;
}

/** The badge for rounds: green only if rounds determine the time and were the objective, and the bound was computed. */
function roundsBadge(raw) {
  if (!raw.bound) return null;
  const gap = raw.rounds - raw.bound.rounds;
  const hint = `at least ${counted(raw.bound.rounds, "round")} (${boundSource(raw.bound)})${boundClass(raw.bound)}`;
  if (raw.bound.source === "stated" && gap === 0) return { text: "as few as the file states", kind: "badge plain", hint };
  if (gap > 0 && raw.objective === "seconds") return null;
  if (gap > 0) return { text: `+${gap}`, kind: "badge gap", hint };
  if (gap < 0) return { text: "below the bound", kind: "badge gap", hint };
  const told = raw.equalLinks && raw.objective === "rounds";
  const among = boundClass(raw.bound) && " among such schedules";
  return told ? { text: `optimal in rounds${among}`, kind: "badge", hint } : { text: `fewest rounds${among}`, kind: "badge plain", hint };
}

/** The badge of the time, if its lower bound is known. */
function timeBadge(raw) {
  const { events, least, why, holdsFor } = raw.time;
  if (!least || events === 0) return null;
  const gap = events / least - 1;
  if (gap < 1e-9) return { text: `optimal in seconds${holdsFor && " among such schedules"}`, kind: "badge", hint: why };
  const far = !raw.equalLinks || raw.objective === "seconds";
  return { text: `${percent(gap)} above the lower bound${holdsFor}`, kind: far ? "badge gap" : "badge plain", hint: why };
}

/**
 * The facts in the head about one schedule: names, values, notes and badges. The measure that was minimised comes first;
 * the bound on rounds is shown only if that is rounds, since it says nothing about time.
 */
function factsOf({ raw, ...schedule }, gradientBytes, several) {
  const switches = schedule.count - schedule.servers.length;
  const { reduce_scatter: reduces, all_gather: gathers } = raw.stages;
  const stages = reduces && gathers ? `${reduces} + ${gathers}` : "";
  const { events, barriers } = raw.time;
  const time = { name: `time for ${sized(gradientBytes)}`, value: duration(events), note: duration(events) === duration(barriers) ? "" : `${duration(barriers)} with barriers`, badge: timeBadge(raw), hint: "predicted, without barriers between rounds" };
  const byTime = raw.objective === "seconds" || raw.clock === "seconds";
  const rounds = { name: "rounds", value: raw.rounds.toLocaleString("en"), note: stages, badge: byTime && !several ? null : roundsBadge(raw), hint: stages && `${reduces} of reduce-scatter, ${gathers} of all-gather` };
  const nodes = [counted(schedule.servers.length, "server"), switches && counted(switches, "switch", "switches")].filter(Boolean);
  return [
    ...(byTime ? [time, rounds] : [rounds]),
    byTime ? null : time,
    { name: several || given.title === raw.network ? "network" : raw.network, value: nodes.join(", ") },
    { name: "links", value: (schedule.links.source.length / 2).toLocaleString("en"), note: bandwidthOf(raw), hint: "full-duplex; bandwidth of each direction" },
    sizesDiffer(schedule) ? { name: "pieces", value: schedule.root.length.toLocaleString("en"), note: pieceSizes(schedule).map(percent).join(" to "), hint: `with the smallest and the largest share of ${schedule.gets ? "all bytes" : "the gradient"} in a piece` } : null,
    raw.bound && !several && !byTime ? { name: "lower bound", value: String(raw.bound.rounds), note: boundSource(raw.bound) + boundClass(raw.bound) } : null,
  ].filter(Boolean);
}

/** Fills a list of facts. */
function showFacts(list, facts) {
  for (const { name, value, note = "", badge = null, hint = "" } of facts) {
    const pair = element("div", "", list);
    element("dt", name, pair);
    const definition = element("dd", value, pair);
    if (note) element("small", note, definition);
    if (badge) element("span", badge.text, definition, badge.kind).title = badge.hint;
    if (hint) pair.title = hint;
  }
}

/** The collective and the strategy that scheduled it. */
function provenance({ collective, known, scheduler }) {
  return `${collective.replaceAll("_", "-")} schedule · ${known ? `${known} · ` : ""}${scheduler}`;
}

/** The strategy with its options and seed. */
function strategyOf({ scheduler, options, seed }) {
  return `${scheduler}${options ? ` (${options})` : ""}${seed === null ? "" : `, seed ${seed}`}`;
}

/** Fills the explanations under the drawings. */
function showProse(schedule, prose) {
  const pieces = schedule.root.length, gather = schedule.raw.collective === "all_gather";
  element("h3", "What you see", prose);
  for (const { why, links } of schedule.raw.limits) {
    element("p", `Lower bound: ${why}.${links.length ? " The links that limit it are dashed." : ""}`, prose);
  }
  if (schedule.gets) {
    element("p", `${counted(schedule.raw.demand.blocks, "block")} of data, cut into ${counted(pieces, "piece")}, each with contributors and destinations. Partial sums are added where contributions meet, a block of one contributor is only copied, and in the end every destination has the sum of all contributions. Other servers may relay data.`, prose);
    return sayRounds(schedule, prose);
  }
  const [adding, copying] = stageNames(schedule);
  const words = {
    reduce_scatter: `The gradient ${pieces === 1 ? "is one piece" : `is cut into ${counted(pieces, "piece")}`}. In the ${adding}, servers pass on partial sums and add them to their own, until ${pieces === 1 ? "the" : "each piece's"} root holds the sum of all contributions.`,
    all_gather: `In the ${copying}, ${gather ? "each piece's root starts with the whole of it, and" : pieces === 1 ? "the complete sum travels back from the root:" : "each complete sum travels back from its root:"} copies overwrite partial sums, until every server has everything.`,
  };
  if (!gather) element("p", words.reduce_scatter, prose);
  if (schedule.raw.collective !== "reduce_scatter") element("p", words.all_gather, prose);
  sayRounds(schedule, prose);
}

/** Explains rounds, and names the strategy. */
function sayRounds({ raw, transfers }, prose) {
  element("p", "A transfer occupies its whole route for one round, and a link direction carries at most its capacity; fewer rounds mean that more links work at once. Rounds count from 0, as in the schedule's file and in the verifier's messages.", prose);
  element("p", `${counted(transfers, "transfer")}, found by ${strategyOf(raw)}.`, prose);
}

/** Explains the widths of links if bandwidths differ: all, or the smallest and the largest of many. */
function showBandwidths(schedule, item) {
  const { bands } = schedule.raw, share = bandWidths(schedule);
  item.hidden = bands.length < 2;
  if (item.hidden) return;
  const shown = bands.length <= 4 ? [...bands.keys()] : [0, bands.length - 1];
  for (const band of shown) {
    const line = svg("svg", { viewBox: "0 0 30 16", "aria-hidden": "true" }, item);
    svg("path", { d: "M1 8h28", class: "link", "stroke-width": 2.6 * share[band] + 0.3 }, line);
    element("span", bands[band], item);
  }
}

/** A piece, and its root or destinations. */
function pieceName(schedule, piece) {
  if (!schedule.gets) return `piece ${piece}, root ${schedule.name(schedule.root[piece])}`;
  const named = (marks) => {
    const found = schedule.servers.filter((_, rank) => marks[rank * schedule.need.length + piece]);
    return found.length > 3 ? `${found.length} servers` : found.map(schedule.name).join(", ");
  };
  return `piece ${piece}: ${named(schedule.gives)} → ${named(schedule.gets)}`;
}

/** The events of the current round in words. */
function caption(schedule, round, piece) {
  if (piece !== null) return `Following ${pieceName(schedule, piece)}; numbers are rounds.`;
  if (round === START) {
    if (schedule.gets) return "At the start each contributor holds its own contribution.";
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
    copies && `${counted(copies, "transfer")} ${copies === 1 ? "copies" : "copy"} ${schedule.gets ? "over what the target holds" : "a complete sum"}`,
  ].filter(Boolean);
  return said.length ? `${said.join("; ")}.` : "No transfer in this round.";
}

/** The duration of the round, and the time until its end, with rounds that wait for their slowest transfer. */
function timing(schedule, round) {
  if (round < 0 || round >= schedule.rounds) return "";
  let until = 0;
  for (let r = 0; r <= round; r++) until += schedule.roundSeconds[r];
  return `Takes ${duration(schedule.roundSeconds[round])}; done at ${duration(until)} of ${duration(schedule.raw.time.barriers)}.`;
}

/** The heading of a round. */
function headingOf(schedule, round) {
  if (round === START) return `Start · ${counted(schedule.rounds, "round")} to come`;
  if (round >= schedule.rounds) return `Complete · after ${counted(schedule.rounds, "round")}`;
  return `Round ${round} of 0–${schedule.rounds - 1} · ${stageOf(schedule, round)}`;
}

/** Fills the table of two schedules: the figures of each, and the difference between them. */
function showDifferences(table, views, gradientBytes) {
  const raws = views.map(({ schedule }) => schedule.raw);
  const busiest = (schedule) => Math.max(0, ...schedule.roundSeconds);
  const number = (value) => value.toLocaleString("en");
  const rows = [
    ["rounds", raws.map((raw) => raw.rounds), number],
    ["lower bound, rounds", raws.map((raw) => raw.bound?.rounds ?? null), number],
    ["transfers", views.map(({ schedule }) => schedule.transfers), number],
    ["pieces", views.map(({ schedule }) => schedule.root.length), number],
    ["bytes over all links", raws.map((raw) => raw.bytes), sized],
    ["seconds, without barriers", raws.map((raw) => raw.time.events), duration],
    ["seconds, with barriers", raws.map((raw) => raw.time.barriers), duration],
    ["longest round", views.map(({ schedule }) => busiest(schedule)), duration],
    ["lower bound, seconds", raws.map((raw) => raw.time.least), duration],
  ];
  const head = element("tr", "", element("thead", "", table));
  for (const text of [`for ${sized(gradientBytes)}`, ...views.map((view) => view.name), "difference"]) element("th", text, head).scope = "col";
  raws.forEach(({ known }, place) => { if (known) element("small", known, head.children[place + 1]); });
  const body = element("tbody", "", table);
  for (const [name, values, write] of rows) {
    if (values.every((value) => value === null)) continue;
    const row = element("tr", "", body);
    element("th", name, row).scope = "row";
    values.forEach((value) => element("td", value === null ? "unknown" : write(value), row));
    const [a, b] = values;
    const apart = a === null || b === null || a === 0 ? "" : Math.abs(b / a - 1) < 1e-9 ? "the same" : `${b > a ? "+" : "−"}${percent(Math.abs(b / a - 1))}`;
    element("td", apart, row);
  }
}
