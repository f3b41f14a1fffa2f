// The search runs in a worker, which browsers refuse to pages opened from a disk. There a hidden
// frame takes its place: the same script, with messages passed on.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.document.open(); // or Firefox replaces the empty document later
      this.inside.document.write("<!doctype html><body></body>");
      this.inside.document.close();
      this.inside.postMessage = (data) =>
        this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve));
      script.src = url;
      this.inside.document.body.append(script);
    }
    postMessage(data) {
      this.ready.then(() =>
        this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }))
      );
    }
    terminate() {
      this.inside.frameElement.remove();
    }
  };
}
