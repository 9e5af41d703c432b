/* page.js -- what hola's pages share: the switch of colours, numbers, tables that fit, line and dot charts. The pages'
 * own scripts (training.js, eval.js, cache_view.js) come after it. No requests to anywhere. */
"use strict";
const $ = id => document.getElementById(id);
function el(tag, attributes, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) k === "class" ? e.className = v : k === "text" ? e.textContent = v : e.setAttribute(k, v);
  e.append(...children.filter(c => c !== null && c !== undefined));
  return e;
}
function svg(tag, attributes, text) {
  const e = document.createElementNS($("ns").namespaceURI, tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}
const data = () => JSON.parse($("data").textContent);

/* ---- what a reader chose, kept while the page is open in this tab ---- */
const memory = { get(k) { try { return sessionStorage.getItem("hola-" + k); } catch { return null; } }, set(k, v) { try { sessionStorage.setItem("hola-" + k, v); } catch { /* pages from files may have none */ } } };

/* ---- light and dark ---- */
const scheme = matchMedia("(prefers-color-scheme: dark)");
function paint() {
  document.documentElement.dataset.scheme = memory.get("scheme") || (scheme.matches ? "dark" : "light");
  const dark = document.documentElement.dataset.scheme === "dark", b = $("scheme");
  if (b) b.textContent = dark ? "Light" : "Dark", b.setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
  document.dispatchEvent(new Event("scheme"));
}
scheme.addEventListener("change", paint);
$("scheme").addEventListener("click", () => { memory.set("scheme", document.documentElement.dataset.scheme === "dark" ? "light" : "dark"); paint(); });
paint();

/* ---- numbers ---- */
const short = (x, digits) => +x.toPrecision(digits || 4);
/* 0.00123, 3.712, 12,345, 1.2e7 */
function number(x, digits = 4) {
  if (x === null || x === undefined || !isFinite(x)) return "–";
  const a = Math.abs(x);
  if (a === 0) return "0";
  if (a >= 1e6 || a < 1e-3) return x.toExponential(Math.max(0, digits - 3)).replace("e+", "e");
  if (a >= 1e4) return Math.round(x).toLocaleString("en-US");
  return String(short(x, digits));
}
/* a loss, or what else is best read with a fixed number of decimals */
const fixed = (x, n = 4) => x === null || x === undefined || !isFinite(x) ? "–" : Math.abs(x) >= 1e4 ? number(x) : x.toFixed(n);
const count = x => x.toLocaleString("en-US");
/* 1,200 tokens, 3.4M, 1.2B */
function many(x) {
  const a = Math.abs(x);
  for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) if (a >= size) return short(x / size, 3) + unit;
  return String(short(x, 3));
}
function duration(s) {
  if (s < 120) return short(s, 3) + " s";
  const m = Math.round(s / 60);
  return m < 120 ? m + " min" : Math.floor(m / 60) + " h " + String(m % 60).padStart(2, "0");
}

/* ---- tables: one that does not fit shows every row as a card ---- */
function fitTables() {
  for (const t of document.querySelectorAll("table")) {
    t.classList.remove("cards");
    const room = t.parentElement.clientWidth;
    if (room > 0 && t.scrollWidth > room + 1) t.classList.add("cards");
  }
}
function labelCells() { /* a card needs the column's name beside every value */
  for (const t of document.querySelectorAll("table")) {
    const names = [...t.querySelectorAll("thead tr:last-child > *")].map(h => h.dataset.l || [...h.childNodes].map(c => c.textContent).filter(x => x).join(" "));
    for (const r of t.querySelectorAll("tbody tr")) [...r.children].forEach((c, i) => { if (c.tagName === "TD" && !c.dataset.l && names[i]) c.dataset.l = names[i]; });
  }
}
let fitting = 0;
addEventListener("resize", () => { cancelAnimationFrame(fitting); fitting = requestAnimationFrame(fitTables); });
addEventListener("DOMContentLoaded", () => { labelCells(); fitTables(); });
addEventListener("toggle", fitTables, true);

/* ---- the box at the pointer ---- */
const tip = {
  show(e, ...children) {
    const t = $("tip");
    t.replaceChildren(...children.filter(c => c));
    t.style.display = "block";
    t.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - t.offsetWidth - 6)) + "px";
    t.style.top = Math.max(4, e.clientY + 18 + t.offsetHeight > innerHeight ? e.clientY - t.offsetHeight - 10 : e.clientY + 18) + "px";
  },
  hide() { $("tip").style.display = "none"; },
};
addEventListener("scroll", tip.hide, { passive: true });

/* ---- axes ---- */
function ticks(lo, hi, n, log) {
  const out = [];
  if (log) { /* powers of ten, with 2 and 5 where there are few */
    const a = Math.floor(Math.log10(lo)), b = Math.ceil(Math.log10(hi)), decades = Math.log10(hi / lo);
    const every = Math.max(1, Math.ceil(decades / n)), steps = decades < 1.2 ? [1, 1.5, 2, 3, 4, 5, 7] : decades < 3 ? [1, 2, 5] : [1];
    for (let k = a; k <= b; k += every) for (const s of steps) { const v = s * 10 ** k; if (v >= lo * .9999 && v <= hi * 1.0001) out.push(v); }
    return out;
  }
  const raw = (hi - lo) / n || 1, power = 10 ** Math.floor(Math.log10(raw)), f = raw / power, step = power * (f < 1.5 ? 1 : f < 3.5 ? 2 : f < 7.5 ? 5 : 10);
  for (let k = Math.ceil(lo / step - 1e-9); k * step <= hi + step * 1e-9; k++) out.push(k * step || 0); /* not -0 */
  return out;
}
/* One way to write all the ticks of an axis: 0.0005 and 0.0010, 0.5e-3 and 1.0e-3, 800k and 1,200k. */
function axisFormat(list) {
  const most = list.reduce((a, v) => Math.max(a, Math.abs(v)), 0), step = list.reduce((a, v, i) => i ? Math.min(a, v - list[i - 1]) : a, Infinity);
  if (!(most > 0) || !isFinite(step)) return number;
  const decimals = unit => Math.min(6, Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9)));
  if (most >= 1e5) { const [size, unit] = most >= 2e9 ? [1e9, "B"] : most >= 2e6 ? [1e6, "M"] : [1e3, "k"], n = decimals(size); return v => v ? (v / size).toLocaleString("en-US", { minimumFractionDigits: n, maximumFractionDigits: n }) + unit : "0"; }
  if (most < 1e-2) { const power = Math.floor(Math.log10(most) + 1e-9), n = decimals(10 ** power); return v => v ? (v / 10 ** power).toFixed(n) + "e" + power : "0"; }
  const n = decimals(1);
  return v => v || n ? v.toLocaleString("en-US", { minimumFractionDigits: n, maximumFractionDigits: n }) : "0";
}
/* Labels that would run into the one before are left out. */
function spaced(list, at, width, gap) {
  const out = []; let end = -Infinity;
  for (const v of list) { const w = width(v) / 2, x = at(v); if (x - w >= end + gap) out.push(v), end = x + w; }
  return out;
}
let ruler = null;
function textWidth(text, size) {
  ruler = ruler || document.createElement("canvas").getContext("2d");
  ruler.font = size + "px " + getComputedStyle(document.body).fontFamily;
  return ruler.measureText(text).width;
}
const fontSize = () => .8 * parseFloat(getComputedStyle(document.documentElement).fontSize);

/* ---- line chart ----
 * chart(figure, spec): spec() gives {x: {title, log, format, ticks}, y: {log, format, lo, hi}, series: [{name, color, dash, faint,
 * width, points: [[x, y, error]], marks}]}. Charts that share `zoom`, {range, draw: []}, zoom together: drag to
 * zoom, double-click for all. Returns the function that draws it again. */
function chart(box, spec, zoom) {
  const s = svg("svg", { role: "img" }); let now = null, start = null;
  box.append(s);
  zoom = zoom || { range: null, draw: [] };
  function draw() {
    const w = box.clientWidth - parseFloat(getComputedStyle(box).paddingLeft) * 2;
    if (w < 50) return;
    const c = spec(), f = fontSize(), h = Math.round(Math.min(Math.max(w * (c.flat || .52), 16 * f), 34 * f)), inside = p => !zoom.range || (p[0] >= zoom.range[0] && p[0] <= zoom.range[1]);
    const good = p => isFinite(p[0]) && p[1] !== null && isFinite(p[1]) && (!c.y.log || p[1] > 0) && (!c.x.log || p[0] > 0);
    const series = c.series.map(q => ({ ...q, points: q.points.filter(good) }));
    const xs = series.flatMap(q => q.points.map(p => p[0])), strong = series.filter(q => !q.faint), ys = [];
    for (const q of strong) for (const p of q.points) if (inside(p)) { const e = p[2] || 0; ys.push(p[1] - (c.y.log ? 0 : e), p[1] + e); }
    for (const q of series.filter(q => q.faint)) { /* noise: all but the highest and lowest hundredth */
      const v = q.points.filter(inside).map(p => p[1]).sort((a, b) => a - b);
      const cut = c.y.log ? 0 : .01; /* a logarithmic axis has room for them */
      if (v.length) ys.push(v[Math.floor(cut * v.length)], v[Math.ceil((1 - cut) * v.length) - 1]);
    }
    s.replaceChildren(); s.setAttribute("viewBox", `0 0 ${w} ${h}`); s.setAttribute("height", h);
    s.setAttribute("aria-label", box.querySelector("h3").textContent);
    now = null;
    if (!ys.length) { s.append(svg("text", { x: w / 2, y: h / 2, "text-anchor": "middle" }, "no values")); return; }
    let [x0, x1] = zoom.range || [xs.reduce((a, b) => Math.min(a, b)), xs.reduce((a, b) => Math.max(a, b))];
    let y0 = c.y.lo ?? ys.reduce((a, b) => Math.min(a, b)), y1 = c.y.hi ?? ys.reduce((a, b) => Math.max(a, b));
    if (x0 === x1) x0 -= .5, x1 += .5;
    if (c.y.log) { const m = Math.max(Math.log(y1 / y0) * .06, .02); y0 *= Math.exp(-m), y1 *= Math.exp(m); }
    else { const m = (y1 - y0) * .06 || Math.abs(y1) * .05 || 1; if (c.y.lo === undefined) y0 -= m; if (c.y.hi === undefined) y1 += m; }
    const xf = c.x.format || number, yf = c.y.format || number, rows = ticks(y0, y1, Math.max(3, Math.round(h / (4 * f))), c.y.log);
    const label = c.y.format || (c.y.log ? number : axisFormat(rows));
    const edge = { left: Math.ceil(Math.max(...rows.map(v => textWidth(label(v), f)))) + 10, right: 14, top: 8, bottom: 3.3 * f };
    const lx = c.x.log ? Math.log : v => v, ly = c.y.log ? Math.log : v => v, wide = w - edge.left - edge.right, high = h - edge.top - edge.bottom;
    const px = v => edge.left + (lx(v) - lx(x0)) / (lx(x1) - lx(x0)) * wide, py = v => edge.top + (1 - (ly(v) - ly(y0)) / (ly(y1) - ly(y0))) * high;
    const back = p => { const t = (p - edge.left) / wide * (lx(x1) - lx(x0)) + lx(x0); return c.x.log ? Math.exp(t) : t; };
    for (const v of rows) {
      s.append(svg("path", { class: "grid", d: `M${edge.left} ${py(v)}h${wide}` }), svg("text", { x: edge.left - 6, y: py(v) + f * .35, "text-anchor": "end" }, label(v)));
    }
    const columns = c.x.ticks ? c.x.ticks.filter(v => v >= x0 && v <= x1) : ticks(x0, x1, Math.max(2, Math.round(wide / (6 * f))), c.x.log);
    for (const v of spaced(columns, px, v => textWidth(xf(v), f), f * .8)) {
      const half = textWidth(xf(v), f) / 2, at = Math.min(Math.max(px(v), half), w - half);
      s.append(svg("path", { class: "grid", d: `M${px(v)} ${edge.top}v${high}` }), svg("text", { x: at, y: h - edge.bottom + 1.65 * f, "text-anchor": "middle" }, xf(v)));
    }
    s.append(svg("path", { class: "axis", fill: "none", d: `M${edge.left} ${edge.top}v${high}h${wide}` }), svg("text", { x: edge.left + wide / 2, y: h - .35 * f, "text-anchor": "middle", class: "ink" }, c.x.title));
    const id = "clip" + Math.random().toString(36).slice(2), clip = svg("clipPath", { id }), g = svg("g", { "clip-path": `url(#${id})` });
    clip.append(svg("rect", { x: edge.left - 5, y: edge.top - 5, width: wide + 10, height: high + 10 }));
    for (const q of [...series.filter(q => q.faint), ...strong]) {
      const line = q.points.map((p, i) => (i ? "L" : "M") + px(p[0]).toFixed(1) + " " + py(p[1]).toFixed(1)).join("");
      g.append(svg("path", { d: line, fill: "none", stroke: q.color, "stroke-width": (q.width || 2) * f / 12, "stroke-linejoin": "round", opacity: q.faint ? .28 : 1, ...(q.dash ? { "stroke-dasharray": q.dash } : {}) }));
      for (const p of q.points) {
        if (p[2]) g.append(svg("path", { d: `M${px(p[0]) - 4} ${py(p[1] - p[2])}h8m-4 0V${py(p[1] + p[2])}m-4 0h8`, stroke: q.color, fill: "none", "stroke-width": 1.3 }));
        if (q.marks || q.points.length === 1) g.append(svg("circle", { cx: px(p[0]), cy: py(p[1]), r: 3.2 * f / 12, fill: q.hollow ? "var(--card)" : q.color, stroke: q.color, "stroke-width": 1.4 }));
      }
    }
    const cross = svg("path", { class: "cross", fill: "none" }), chosen = svg("rect", { class: "zoom", y: edge.top, height: high, width: 0 });
    s.append(clip, g, cross, chosen);
    now = { px, py, back, edge, wide, high, cross, chosen, strong, xf, yf, title: c.x.title };
  }
  const at = e => { const b = s.getBoundingClientRect(); return (e.clientX - b.left) / b.width * s.viewBox.baseVal.width; };
  const limit = x => Math.min(Math.max(x, now.edge.left), now.edge.left + now.wide);
  s.addEventListener("pointerdown", e => { if (now && e.button === 0 && e.pointerType !== "touch") start = limit(at(e)), s.setPointerCapture(e.pointerId); });
  s.addEventListener("pointermove", e => {
    if (!now) return;
    const x = limit(at(e)), where = now.back(x), list = []; let shown = null;
    if (start !== null) now.chosen.setAttribute("x", Math.min(start, x)), now.chosen.setAttribute("width", Math.abs(x - start));
    for (const q of now.strong) {
      if (!q.points.length) continue;
      const p = q.points.reduce((a, b) => Math.abs(now.px(b[0]) - x) < Math.abs(now.px(a[0]) - x) ? b : a);
      if (!shown || Math.abs(now.px(p[0]) - x) < Math.abs(now.px(shown[0]) - x)) shown = p;
      const key = el("span", { class: "key" + (q.dash ? " dash" : "") }); key.style.color = q.color;
      list.push(el("div", {}, key, ` ${q.name}: `, el("b", { text: now.yf(p[1], 5) + (p[2] ? " ± " + now.yf(p[2], 3) : "") }), Math.abs(now.px(p[0]) - x) > 20 ? ` (at ${now.xf(p[0])})` : ""));
    }
    now.cross.setAttribute("d", `M${shown ? now.px(shown[0]) : x} ${now.edge.top}v${now.high}`);
    tip.show(e, el("div", { text: `${now.title}: ${now.xf(shown ? shown[0] : where)}` }), ...list);
  });
  s.addEventListener("pointerup", e => {
    if (start === null || !now) return;
    const x = limit(at(e)), a = now.back(Math.min(start, x)), b = now.back(Math.max(start, x)), far = Math.abs(x - start) > 8;
    start = null;
    if (far) zoom.range = [a, b];
    now.chosen.setAttribute("width", 0);
    if (far) zoom.draw.forEach(d => d());
  });
  s.addEventListener("pointerleave", () => { tip.hide(); if (now) now.cross.setAttribute("d", ""); });
  s.addEventListener("dblclick", () => { zoom.range = null; zoom.draw.forEach(d => d()); });
  zoom.draw.push(draw);
  new ResizeObserver(draw).observe(box);
  return draw;
}

/* ---- dot chart: rows of values with errors, each row with its chance level ----
 * dots(figure, {title, format, hi, rows: [{label, chance, values: [{name, color, v, e, note}]}]}) */
function dots(box, spec) {
  const s = svg("svg", { role: "img" });
  box.append(s);
  function draw() {
    const w = box.clientWidth - parseFloat(getComputedStyle(box).paddingLeft) * 2, f = fontSize();
    if (w < 50) return;
    const step = 1.15 * f, heights = spec.rows.map(r => Math.max(r.values.length * step + .8 * f, 2 * f)), stacked = w < 32 * f;
    const left = stacked ? 6 : Math.min(w * .4, 12 + Math.max(...spec.rows.map(r => textWidth(r.label, f)))), right = 12;
    const extra = stacked ? 1.5 * f : 0, h = heights.reduce((a, b) => a + b + extra, 0) + 3.2 * f, wide = w - left - right, px = v => left + v / spec.hi * wide;
    s.replaceChildren(); s.setAttribute("viewBox", `0 0 ${w} ${h}`); s.setAttribute("height", h);
    s.setAttribute("aria-label", box.querySelector("h3").textContent);
    for (const v of spaced(ticks(0, spec.hi, Math.max(2, Math.round(wide / (6 * f)))), px, v => textWidth(spec.format(v), f), f * .6)) {
      const half = textWidth(spec.format(v), f) / 2;
      s.append(svg("path", { class: "grid", d: `M${px(v)} 0v${h - 2.9 * f}` }), svg("text", { x: Math.min(px(v), w - half), y: h - 1.7 * f, "text-anchor": "middle" }, spec.format(v)));
    }
    s.append(svg("text", { x: left + wide / 2, y: h - .35 * f, "text-anchor": "middle", class: "ink" }, spec.title));
    let y = 0;
    spec.rows.forEach((r, i) => {
      const high = heights[i];
      s.append(svg("path", { class: "grid", d: `M0 ${y}h${w}` }), svg("text", { class: "ink", x: stacked ? 2 : left - 10, y: stacked ? y + 1.1 * f : y + high / 2 + f * .35, "text-anchor": stacked ? "start" : "end" }, r.label));
      y += extra;
      if (r.chance !== null && r.chance !== undefined) s.append(svg("path", { d: `M${px(r.chance)} ${y + 2}v${high - 4}`, stroke: "var(--soft)", "stroke-width": 2, "stroke-dasharray": "2 3" }));
      r.values.forEach((q, k) => {
        const at = y + .4 * f + step * (k + .5), g = svg("g", { stroke: q.color, fill: q.color }), lo = Math.max(0, q.v - (q.e || 0)), hi = Math.min(spec.hi, q.v + (q.e || 0));
        if (q.e) g.append(svg("path", { d: `M${px(lo)} ${at - 3}v6m0 -3H${px(hi)}m0 -3v6`, fill: "none", "stroke-width": 1.5 }));
        g.append(svg("circle", { cx: px(q.v), cy: at, r: f / 3 }), svg("rect", { x: left, y: at - step / 2, width: wide, height: step, fill: "transparent", stroke: "none" }));
        g.addEventListener("pointermove", e => tip.show(e, el("div", { text: r.label }), el("div", {}, `${q.name}: `, el("b", { text: spec.format(q.v, 4) + (q.e ? " ± " + spec.format(q.e, 3) : "") })), q.note ? el("div", { text: q.note }) : null));
        g.addEventListener("pointerleave", tip.hide);
        s.append(g);
      });
      y += high;
    });
  }
  new ResizeObserver(draw).observe(box);
}
const figure = (title, unit, cls) => el("figure", cls ? { class: cls } : {}, el("h3", {}, title, unit ? el("span", { class: "unit", text: ", " + unit }) : null));
const colour = i => `var(--s${i % 8})`;
/* A key drawn with the dashes of its line. */
function lineKey(c, dash) { const s = svg("svg", { class: "line", viewBox: "0 0 30 6", "aria-hidden": "true" }); s.append(svg("path", { d: "M0 3h30", stroke: c, "stroke-width": 2, "stroke-dasharray": dash })); return s; }
const key = (c, kind) => { const k = el("span", { class: "key" + (kind ? " " + kind : "") }); k.style.color = c; return k; };
