/* Who holds how much: a heat map of servers by pieces on a canvas. */

const COLOURED_PIECES = 24;

/** A canvas sized in CSS pixels and cleared, and its context. */
function freshCanvas(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 8000 / Math.max(width, height));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return context;
}

/** Values of the theme by name, cached: asking the browser is slow while a drawing changes. */
const THEME = new Map();

/** A colour of the theme. */
function themed(name) {
  if (!THEME.has(name)) THEME.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return THEME.get(name);
}

/** The heat map: returns a function that draws it and a function that finds a cell. */
function holdingsMatrix(schedule, canvas, colour) {
  const pieces = schedule.root.length, servers = schedule.servers.length;
  const left = Math.max(30, 9 + 7 * Math.max(...schedule.servers.map((node) => schedule.shortName(node).length)));
  let grid = null;
  const draw = (held, before, { piece = null, server = null, enlarged = false } = {}) => {
    grid = matrixGrid(canvas, servers, pieces, enlarged, left);
    const context = freshCanvas(canvas, grid.width, grid.height);
    if (isAggregate(servers, pieces) || grid.cell < 4) drawPixels(context, grid, held, before, schedule);
    else drawCells(context, grid, held, before, { schedule, servers, pieces, colour });
    drawAxes(context, grid, schedule, { servers, pieces, piece, server, colour });
  };
  const at = (x, y) => {
    if (!grid) return null;
    const piece = Math.floor((x - grid.left) / grid.cell), server = Math.floor((y - grid.top) / grid.tall);
    return piece < 0 || server < 0 || piece >= pieces || server >= servers ? null : { piece, server };
  };
  return { draw, at };
}

/** Whether there are so many cells that a single colour scale is clearer than one colour per piece. */
function isAggregate(servers, pieces) {
  return servers * pieces > 2500;
}

/** Sizes of cells and margins that fit the available space, or large enough to read with scrolling. */
function matrixGrid(canvas, servers, pieces, enlarged, left) {
  const room = Math.max(120, canvas.parentElement.clientWidth);
  const top = 22;
  const cell = enlarged ? Math.max(1, Math.min(14, 7600 / Math.max(pieces, servers))) : Math.min(34, (room - left - 2) / pieces);
  /* Rows stay legible even if there are many more columns. */
  const tall = enlarged ? cell : Math.min(Math.max(cell, Math.min(12, 200 / servers)), Math.max(cell < 4 ? 0.5 : 4, 520 / servers));
  return { left, top, cell, tall, width: left + cell * pieces + 2, height: top + tall * servers + 2 };
}

/** Cells large enough to have edges: pale while partial, full when complete, outlined when just received, underlined if a demand requires them. */
function drawCells(context, grid, held, before, { schedule, servers, pieces, colour }) {
  const gap = Math.min(grid.cell, grid.tall) > 9 ? 2 : 0.6;
  const paper = themed("--cell"), ink = themed("--ink"), one = themed("--accent"), onColour = themed("--on-colour");
  const numbered = Math.min(grid.cell, grid.tall) >= 19;
  context.font = `500 ${Math.min(12, grid.tall * 0.42)}px ${themed("--sans")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  for (let server = 0; server < servers; server++) {
    for (let piece = 0; piece < pieces; piece++) {
      const value = held[server * pieces + piece];
      const box = [grid.left + piece * grid.cell + gap / 2, grid.top + server * grid.tall + gap / 2, grid.cell - gap, grid.tall - gap];
      const path = new Path2D();
      path.roundRect(...box, gap > 1 ? 3 : 0);
      context.fillStyle = paper;
      context.fill(path);
      context.globalAlpha = depth(value, schedule.need[piece]);
      context.fillStyle = pieces <= COLOURED_PIECES ? colour(piece) : one;
      context.fill(path);
      context.globalAlpha = 1;
      if (before && before[server * pieces + piece] !== value && gap > 1) {
        context.strokeStyle = ink;
        context.lineWidth = 1.6;
        context.stroke(path);
      }
      if (schedule.gets?.[server * pieces + piece]) {
        context.fillStyle = ink;
        context.fillRect(box[0], box[1] + box[3] - Math.max(1, gap), box[2], Math.max(1, gap));
      }
      if (!numbered || value <= 0) continue;
      context.fillStyle = value >= schedule.need[piece] ? onColour : ink;
      context.fillText(String(Math.round(value)), box[0] + box[2] / 2, box[1] + box[3] / 2 + 0.5);
    }
  }
}

/** Colours of 0 to `all` contributions: a scale by ratio, with a distinct colour for the complete sum. */
function ramp(all) {
  const [none, few, many, whole] = ["--cell", "--few", "--many", "--good"].map((name) => rgbOf(themed(name)));
  const colours = new Uint8ClampedArray(4 * (all + 1));
  for (let value = 0; value <= all; value++) {
    const share = all > 1 ? Math.log(Math.max(1, value)) / Math.log(all) : 1;
    const colour = value === 0 ? none : value === all ? whole : few.map((c, i) => c + (many[i] - c) * share);
    colours.set([colour[0], colour[1], colour[2], 255], 4 * value);
  }
  return colours;
}

/** Many cells: one pixel each, scaled; cells that have just received have a separate colour. */
function drawPixels(context, grid, held, before, { need, servers: { length: servers } }) {
  const pieces = need.length, image = new ImageData(pieces, servers);
  const colours = ramp(servers), news = rgbOf(themed("--news"));
  for (let i = 0; i < servers * pieces; i++) {
    const fresh = before && before[i] !== held[i];
    const all = need[i % pieces], value = held[i] >= all ? servers : Math.round((held[i] / all) * servers);
    const from = 4 * Math.min(servers, Math.max(value, held[i] > 0 ? 1 : 0));
    image.data.set(fresh ? news : colours.subarray(from, from + 4), 4 * i);
  }
  const small = new OffscreenCanvas(pieces, servers);
  small.getContext("2d").putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, grid.left, grid.top, grid.cell * pieces, grid.tall * servers);
}

/** Red, green and blue of a colour as the browser draws it. */
function rgbOf(colour) {
  const context = new OffscreenCanvas(1, 1).getContext("2d");
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  return context.getImageData(0, 0, 1, 1).data;
}

/** Names of servers next to the rows, pieces above the columns, and frames around the cell under the pointer. */
function drawAxes(context, grid, schedule, { servers, pieces, piece, server, colour }) {
  context.font = `11px ${themed("--sans")}`;
  context.fillStyle = themed("--muted");
  context.textBaseline = "middle";
  context.textAlign = "right";
  const every = (size, least) => Math.max(1, Math.ceil(least / size));
  for (let s = 0; s < servers; s += every(grid.tall, 13)) {
    context.fillText(schedule.shortName(schedule.servers[s]), grid.left - 6, grid.top + (s + 0.5) * grid.tall);
  }
  context.textAlign = "center";
  for (let p = 0; p < pieces; p += every(grid.cell, 8 + 7 * String(pieces).length)) {
    context.fillText(String(p), grid.left + (p + 0.5) * grid.cell, 7);
  }
  for (let p = 0; p < pieces && grid.cell >= 2; p++) {
    context.fillStyle = colour(p);
    context.fillRect(grid.left + p * grid.cell + (grid.cell > 9 ? 1 : 0), 15, grid.cell - (grid.cell > 9 ? 2 : 0.3), 3.5);
  }
  context.strokeStyle = themed("--ink");
  context.lineWidth = 1.2;
  if (piece !== null) context.strokeRect(grid.left + piece * grid.cell, grid.top, grid.cell, grid.tall * servers);
  if (server !== null) context.strokeRect(grid.left, grid.top + server * grid.tall, grid.cell * pieces, grid.tall);
}
