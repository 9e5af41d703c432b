/* training.js -- the page of hola plot: runs, their curves, their settings. See page.js for charts and numbers. */
const D = data();
const axes = {
  steps: { title: "step", of: "step", format: v => v >= 1e5 ? many(v) : count(Math.round(v)) },
  tokens: { title: "tokens", of: "tokens", format: many },
  time: { title: "training time", of: "seconds", format: duration },
};
let axis = memory.get("axis") || "steps", smooth = +(memory.get("smooth") ?? (D.runs.some(r => r.lines > 1000) ? .9 : .75)), zoom = { range: null, draw: [] };
/* Runs of one folder are told apart by what follows it. */
const parts = D.runs.map(r => r.name.replace(/\/+$/, "").split("/"));
let same = 0;
while (D.runs.length > 1 && parts.every(p => same < p.length - 1 && p[same] === parts[0][same])) same++;
D.runs.forEach((r, i) => { r.color = colour(i); r.path = r.name; r.name = parts[i].slice(same).join("/"); });

/* A straight line through the neighbours of each point, whose weights fall exponentially to both sides: the curve does not
 * lag, and its ends are not pulled towards the middle. */
function smoothed(list, a) {
  const n = list.length, all = list.map(() => null), real = list.filter(v => v !== null);
  const lo = real.reduce((x, y) => Math.min(x, y), Infinity), hi = real.reduce((x, y) => Math.max(x, y), -Infinity);
  for (const step of [1, -1]) {
    let sums = [0, 0, 0, 0, 0]; /* of the weights, times x, x^2, v, x v */
    for (let i = step > 0 ? 0 : n - 1; i >= 0 && i < n; i += step) {
      const v = list[i], x = i - n / 2, own = [1, x, x * x, v, x * v];
      if (v === null) continue;
      sums = sums.map((s, k) => a * s + own[k]);
      all[i] = all[i] ? all[i].map((s, k) => s + sums[k] - own[k]) : sums; /* its own value counts once */
    }
  }
  return all.map((s, i) => {
    if (s === null) return null;
    const [, x, xx, v, xv] = s.map(q => q / s[0]), spread = xx - x * x;
    return Math.min(Math.max(v + (spread > 1e-6 ? (xv - x * v) / spread * (i - n / 2 - x) : 0), lo), hi);
  });
}
const points = (r, ys) => { const xs = r.curves[axes[axis].of]; return ys.map((y, i) => [xs[i], y]); };
const valued = r => r.curves.val.map(v => [v[{ steps: 0, tokens: 1, time: 2 }[axis]], v[3]]);

/* Two curves a run: as it was, faint, and smoothed. */
function lines(field) {
  return D.runs.flatMap(r => {
    const raw = r.curves[field], named = D.runs.length > 1 ? r.name : "training";
    return smooth > 0 && raw.length > 2
      ? [{ name: named, color: r.color, faint: true, width: 1, points: points(r, raw) }, { name: named, color: r.color, points: points(r, smoothed(raw, smooth)) }]
      : [{ name: named, color: r.color, width: 1.6, points: points(r, raw) }];
  });
}
const x = () => ({ title: axes[axis].title, format: axes[axis].format });
const validation = () => D.runs.filter(r => r.curves.val.length).map((r, i) =>
  ({ name: (D.runs.length > 1 ? r.name + ", " : "") + "validation", color: D.runs.length > 1 ? r.color : colour(1), dash: "6 4", marks: r.curves.val.length < 60, hollow: true, points: valued(r) }));

/* ---- runs ---- */
{
  const head = ["run", "parameters", "step", "tokens", "best validation loss", "last training loss", "time"], body = el("tbody");
  for (const r of D.runs) {
    const s = r.settings && r.settings.run, of = s ? ` of ${count(s.steps)}` : "", row = el("tr");
    row.append(el("td", { class: "t" }, el("span", { title: r.path }, key(r.color), " " + r.name)));
    for (const c of [r.parameters ? many(r.parameters) : "–", r.last ? count(r.last.step) + of : "0", r.last ? many(r.last.tokens) : "0", r.best ? `${fixed(r.best.loss)} at step ${count(r.best.step)}` : "–", r.last ? fixed(r.last.loss) : "–",
      r.last && r.last.seconds !== null ? duration(r.last.seconds) : "–"]) row.append(el("td", {}, el("span", { text: c })));
    body.append(row);
  }
  $("runs").append(el("div", { class: "wide" }, el("table", { id: "table" }, el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { class: i ? "n" : "t", text: h })))), body)));
  $("lead").textContent = "Losses are in nats per token." + (D.refresh ? ` The run goes on; the page loads again every ${D.refresh} s.` : "");
  if (D.runs.some(r => r.last && r.last.skipped)) $("runs").append(el("p", { class: "warn", text: D.runs.filter(r => r.last && r.last.skipped).map(r => `${r.name}: ${number(r.last.skipped)} steps were skipped, their gradients were not finite.`).join(" ") }));
}

/* ---- controls ---- */
function redraw() { zoom.draw.forEach(d => d()); }
{
  const choice = el("span", { class: "choice", role: "group", "aria-label": "horizontal axis" });
  for (const name of Object.keys(axes)) {
    const b = el("button", { type: "button", "aria-pressed": name === axis, text: name });
    b.onclick = () => { axis = name; memory.set("axis", name); zoom.range = null; choice.querySelectorAll("button").forEach(o => o.setAttribute("aria-pressed", o === b)); redraw(); };
    choice.append(b);
  }
  const slider = el("input", { type: "range", min: 0, max: .99, step: .01, value: smooth, id: "smooth", "aria-label": "smoothing" }), shown = el("output", { text: smooth.toFixed(2) });
  slider.oninput = () => { smooth = +slider.value; shown.textContent = smooth.toFixed(2); memory.set("smooth", smooth); redraw(); };
  const all = el("button", { type: "button", text: "Reset zoom" });
  all.onclick = () => { zoom.range = null; redraw(); };
  $("bar").append(el("label", {}, "axis", choice), el("label", {}, "smoothing", slider, shown), all, el("span", { class: "note", text: "Drag over a chart to zoom, double-click for all." }));
}

/* ---- charts ---- */
function panel(title, unit, spec, big, note) {
  const box = figure(title, unit, big ? "big" : "");
  if (D.runs.length > 1 || big) {
    const list = el("ul", { class: "legend" });
    for (const r of D.runs) {
      const best = big && r.best ? `: best validation loss ${fixed(r.best.loss)} (step ${count(r.best.step)})` : big ? ": no validation" : "";
      list.append(el("li", {}, key(r.color), r.name + best));
    }
    if (big && D.runs.some(r => r.curves.val.length)) list.append(el("li", {}, key(D.runs.length > 1 ? "var(--soft)" : colour(1), "dash"), "validation"));
    if (big) list.append(el("li", {}, key("var(--soft)"), "training"));
    box.append(list);
  }
  $("charts").append(box);
  chart(box, spec, zoom);
  if (note) box.append(el("figcaption", { text: note }));
}
panel("Loss", "nats per token", () => ({ flat: .36, x: x(), y: {}, series: [...lines("loss"), ...validation()] }), true, "Faint: every step; solid: smoothed as set above; dashed: validation.");
panel("Learning rate", "", () => ({ x: x(), y: {}, series: D.runs.map(r => ({ name: r.name, color: r.color, points: points(r, r.curves.lr) })) }));
panel("Gradient norm", "before clipping, logarithmic", () => ({ x: x(), y: { log: true }, series: lines("grad_norm") }));
panel("Speed", "tokens per second", () => ({ x: x(), y: { lo: 0 }, series: lines("tok_per_s") }));

/* ---- settings: what differs between runs stands out ---- */
{
  const flat = (v, at = "") => Object.entries(v || {}).flatMap(([k, w]) => w && typeof w === "object" && !Array.isArray(w) ? flat(w, at + k + ".") : [[at + k, Array.isArray(w) ? JSON.stringify(w) : w === null ? "–" : String(typeof w === "number" ? (Number.isInteger(w) ? count(w) : short(w, 6)) : w)]]);
  const all = D.runs.map(r => new Map(r.settings ? [...flat(r.settings.run), ...flat(r.settings.options, "options."), ["hola", r.settings.hola]] : [])), names = [...new Set(all.flatMap(m => [...m.keys()]))];
  if (names.length) {
    const body = el("tbody");
    for (const n of names) {
      const values = all.map(m => m.get(n) ?? "–"), other = values.some(v => v !== values[0]), row = el("tr", {}, el("th", { scope: "row", text: n }));
      values.forEach((v, i) => row.append(el("td", { "data-l": D.runs[i].name }, other ? el("b", { text: v }) : el("span", { text: v }))));
      body.append(row);
    }
    const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", { class: "t", text: "setting" }), ...D.runs.map(r => el("th", { text: r.name })))), body);
    const main = [["config.model_type", "", ""], ["config.num_hidden_layers", "", " layers"], ["config.hidden_size", "", " wide"], ["data.train_tokens", "", " training tokens"], ["batch_tokens", "", " tokens per step"], ["seq_len", "rows of ", ""],
      ["lr", "peak rate ", ""], ["schedule", "", ""], ["warmup", "", " warmup steps"], ["weight_decay", "weight decay ", ""], ["seed", "seed ", ""], ["options.backend", "on ", ""]];
    $("settings").append(el("h2", { text: "Settings" }), ...D.runs.map((r, i) => el("p", { class: "note" }, key(r.color), ` ${r.name}: ` + main.filter(m => all[i].has(m[0])).map(m => m[1] + all[i].get(m[0]) + (String(all[i].get(m[0])) === "1" ? m[2].replace(/s$/, "") : m[2])).join(", ") + ".")),
      el("details", {}, el("summary", { text: "All settings" + (D.runs.length > 1 ? " (bold: the runs differ)" : "") }), el("div", { class: "wide" }, table)));
  } else $("settings").append(el("p", { class: "note", text: "There is no run.json beside these metrics: the settings of the runs are not known." }));
}
labelCells(); fitTables();
