// Loads uPlot. Its small build is a plain script that defines a global.
const script = document.createElement("script");
script.src = new URL("../../vendor/uPlot.iife.min.js", import.meta.url);
const loaded = new Promise((resolve, reject) => {
  script.onload = resolve;
  script.onerror = reject;
});
document.head.append(script);
await loaded;

export default window.uPlot;
