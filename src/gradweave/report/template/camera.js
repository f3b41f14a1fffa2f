/* Zoom and pan of a drawing: by buttons, keys, wheel with Ctrl, pinch, drag and double click. */

const MOST_ZOOM = 24;
/** Smallest size at which names of servers, and of racks, are shown. */
const LABEL_PX = 6.7, FRAME_PX = 6;

/** A view of a drawing; `frame` gives its current size and radius. */
function cameraOf(root, frame, changed) {
  const state = { zoom: 1, x: 0, y: 0 };
  const pointers = new Map();
  const pixel = () => (root.clientWidth ? Math.min(root.clientWidth / frame().width, root.clientHeight / frame().height) : 1);

  const apply = () => {
    const { width, height } = frame();
    const keep = (value, whole) => Math.max(0, Math.min(whole - whole / state.zoom, value));
    [state.x, state.y] = [keep(state.x, width), keep(state.y, height)];
    root.setAttribute("viewBox", [state.x, state.y, width / state.zoom, height / state.zoom].map((v) => v.toFixed(2)).join(" "));
    root.classList.toggle("zoomed", state.zoom > 1);
    const small = (selector, least) => {
      const sizes = [...root.querySelectorAll(selector)].map((text) => Number(text.getAttribute("font-size")));
      return sizes.length > 0 && Math.min(...sizes) * pixel() * state.zoom < least;
    };
    root.classList.toggle("unlabelled", small(".server text", LABEL_PX));
    root.classList.toggle("unframed", small(".frames text", FRAME_PX));
    changed?.(state.zoom);
  };
  /* Zooms by a factor about a point of the screen, or about the centre. */
  const zoomBy = (factor, clientX, clientY) => {
    const { width, height } = frame();
    const point = clientX === undefined ? { x: state.x + width / state.zoom / 2, y: state.y + height / state.zoom / 2 } : inside(clientX, clientY);
    const next = Math.max(1, Math.min(MOST_ZOOM, state.zoom * factor));
    state.x = point.x - ((point.x - state.x) * state.zoom) / next;
    state.y = point.y - ((point.y - state.y) * state.zoom) / next;
    state.zoom = next;
    apply();
  };
  const inside = (clientX, clientY) => {
    const matrix = root.getScreenCTM();
    return matrix ? new DOMPoint(clientX, clientY).matrixTransform(matrix.inverse()) : { x: 0, y: 0 };
  };
  const panBy = (dx, dy) => {
    state.x -= dx / (pixel() * state.zoom);
    state.y -= dy / (pixel() * state.zoom);
    apply();
  };
  const reset = () => {
    Object.assign(state, { zoom: 1, x: 0, y: 0 });
    apply();
  };

  root.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoomBy(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.004)), event.clientX, event.clientY);
  }, { passive: false });
  root.addEventListener("dblclick", (event) => zoomBy(event.shiftKey ? 0.5 : 2, event.clientX, event.clientY));
  root.addEventListener("pointerdown", (event) => {
    pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (state.zoom > 1 || pointers.size > 1) root.setPointerCapture(event.pointerId);
  });
  root.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    if (pointers.size === 2) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const apart = ([x, y]) => Math.hypot(x - other[0], y - other[1]) || 1;
      zoomBy(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
    } else if (state.zoom > 1) panBy(now[0] - before[0], now[1] - before[1]);
    pointers.set(event.pointerId, now);
  });
  for (const type of ["pointerup", "pointercancel", "pointerleave"]) {
    root.addEventListener(type, (event) => pointers.delete(event.pointerId));
  }
  return { apply, zoomBy, panBy, reset, zoom: () => state.zoom };
}
