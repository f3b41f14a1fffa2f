/* Within a frame of a notebook: tells the notebook how tall the page is, which cannot look into it. */

if (parent !== self) {
  const tell = () => parent.postMessage({ gradweaveHeight: document.documentElement.offsetHeight }, "*");
  new ResizeObserver(tell).observe(document.documentElement);
  addEventListener("load", tell);
}
