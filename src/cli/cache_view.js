/* cache_view.js -- the page of hola inspect --memory: surprise over tokens, the text, what is read and kept. */
const D = data(), n = D.tokens.length, H = D.heads, rows = D.layers * H;
const bytes = Uint8Array.from(atob(D.m), c => c.charCodeAt(0)), M = new Float32Array(bytes.buffer); /* [rows][n] */
const mean = Array.from({ length: rows }, (_, r) => { let s = 0; for (let t = 0; t < n; t++) s += M[r * n + t]; return s / n || 1; });
const closed = Math.floor(n / D.chunk) * D.chunk, recent = t => t < closed && t >= closed - D.window, age = t => n - t;
const keptOf = D.kept.map(list => new Set(list)), holders = t => keptOf.reduce((k, s) => k + s.has(t), 0);
const num = x => number(x, 3), percent = x => (100 * x).toFixed(2) + " %", name = r => r < 0 ? "mean of all layers and heads" : `layer ${Math.floor(r / H)}, head ${r % H}`;
let row = -1; /* -1: the mean over all */

/* ---- colours: from the page's own to the strongest at four times the mean ---- */
const ramps = { light: [[247, 248, 250], [253, 205, 120], [226, 84, 30], [110, 10, 45]], dark: [[26, 30, 37], [92, 52, 22], [226, 103, 31], [255, 226, 140]] };
const dark = () => document.documentElement.dataset.scheme === "dark";
function ramp(x) {
  const c = ramps[dark() ? "dark" : "light"], h = Math.min(Math.max(x / 4, 0), 1) * 3, i = Math.min(2, Math.floor(h)), f = h - i;
  return c[i].map((v, k) => Math.round(v + (c[i + 1][k] - v) * f));
}
const heat = t => { if (row >= 0) return M[row * n + t] / mean[row]; let s = 0; for (let r = 0; r < rows; r++) s += M[r * n + t] / mean[r]; return s / rows; };

function drawMap() {
  const c = $("map"), cols = Math.min(n, 2000), cell = Math.max(2, Math.min(22, Math.floor(320 / rows))), image = new ImageData(cols, rows);
  for (let r = 0; r < rows; r++) for (let x = 0; x < cols; x++) {
    const a = Math.floor(x * n / cols), b = Math.max(a + 1, Math.floor((x + 1) * n / cols));
    let v = 0; for (let t = a; t < b; t++) v = Math.max(v, M[r * n + t] / mean[r]);
    image.data.set([...ramp(v), 255], 4 * (r * cols + x));
  }
  c.width = cols; c.height = rows; c.style.height = rows * cell + "px";
  c.getContext("2d").putImageData(image, 0, 0);
  $("scale").style.background = `linear-gradient(to right, ${[0, 1, 2, 3, 4].map(x => `rgb(${ramp(x)})`).join(", ")})`;
  const font = fontSize(), every = cell >= font ? 1 : H * cell >= font ? H : H * Math.ceil(font / (H * cell));
  $("rows").replaceChildren(); $("columns").replaceChildren();
  for (let r = 0; r < rows; r += every) {
    const on = row >= 0 && r <= row && row < r + every, s = el("span", { text: every === 1 ? name(r).replace("layer ", "L").replace(", head ", " H") : `layer ${r / H}`, class: on ? "on" : "" });
    s.style.top = (r + Math.min(every, rows - r) / 2) * cell + "px"; $("rows").append(s);
  }
  const width = c.clientWidth, at = t => (t + .5) / n * width;
  for (const t of spaced(ticks(0, n - 1, Math.max(2, Math.round(width / (7 * font)))).filter(Number.isInteger), at, t => textWidth(count(t), font), font)) {
    const s = el("span", { text: count(t) }), half = textWidth(count(t), font) / 2; s.style.left = Math.min(Math.max(at(t), half), width - half) + "px"; $("columns").append(s);
  }
  $("columns").append(el("b", { text: "token" }));
}
function drawText() {
  const box = $("text"), show = $("show").value, all = document.createDocumentFragment();
  for (let t = 0; t < n; t++) {
    const kept = row < 0 ? holders(t) > 0 : keptOf[row].has(t), x = heat(t), [r, g, b] = ramp(x), bright = .3 * r + .59 * g + .11 * b > 128;
    const s = el("span", { class: (show.includes("k") && kept ? "k " : "") + (show.includes("r") && recent(t) ? "r " : "") + (t === D.query ? "q" : ""), "data-t": t, text: D.tokens[t] });
    if (x > .5) s.style.background = `rgb(${r}, ${g}, ${b})`, s.style.color = bright ? "#16191f" : "#ffffff";
    all.append(s); if (D.tokens[t].endsWith("\\n")) all.append("\n");
  }
  box.replaceChildren(all);
}

/* ---- tables: of one head, or over all ---- */
function fill(table, head, list) {
  const body = el("tbody");
  for (const cells of list) body.append(el("tr", {}, ...cells.map((x, i) => el("td", { class: i === 0 ? "t c" : "" }, x instanceof Node ? x : el("span", { text: x })))));
  table.replaceChildren(el("thead", {}, el("tr", {}, ...head.map((h, i) => el("th", { class: i === 0 ? "t" : "", text: h })))), body);
}
function bar(part, cls) { const b = el("span", { class: "p " + cls }); b.style.width = `calc(${part} * min(5rem, 10vw))`; return b; }
function reads() { /* shares of tokens, of the head or their mean over all heads */
  const list = row < 0 ? D.read : [D.read[row]], sum = new Map(); let sink = 0, gate = 0;
  for (const x of list) {
    x.pos.forEach((t, i) => { const at = sum.get(t) || { t, p: 0, block: i >= x.kept }; at.p += x.p[i] / list.length; at.block = at.block && i >= x.kept; sum.set(t, at); });
    sink += x.sink / list.length, gate += x.gate / list.length;
  }
  return { gate, list: [...sum.values(), { t: -1, p: sink }].sort((a, b) => b.p - a.p).slice(0, 20) };
}
function drawTables() {
  const q = reads(), most = q.list[0].p || 1;
  $("query").textContent = `${name(row)}: token ${count(D.query)}, “${D.tokens[D.query]}”; gate ${num(q.gate)}. The sink takes what no token gets.`;
  fill($("read"), ["token", "position", "from", "share", ""], q.list.map(x => x.t < 0 ? ["(none)", "–", "sink", percent(x.p), bar(x.p / most, "s")] : [D.tokens[x.t], count(x.t), x.block ? "block" : "memory", percent(x.p), bar(x.p / most, x.block ? "b" : "")]));
  if (row >= 0) {
    const kept = D.kept[row].map(t => ({ t, m: M[row * n + t] })).sort((a, b) => b.m - a.m), both = kept.filter(x => recent(x.t)).length;
    $("share").textContent = kept.length ? `${name(row)}: ${kept.length} tokens, by surprise m; a memory of the latest ${count(D.window)} would also hold ${both} of them.` : `${name(row)}: no block is full yet.`;
    const digits = Math.max(0, 2 - Math.floor(Math.log10(kept.length && kept[0].m > 0 ? kept[0].m : 1))); /* three of the largest */
    fill($("kept"), ["token", "position", "age, tokens", "m", "in the latest"], kept.slice(0, 24).map(x => [D.tokens[x.t], count(x.t), count(age(x.t)), x.m.toFixed(digits), recent(x.t) ? "yes" : "–"]));
  } else {
    const kept = D.tokens.map((_, t) => ({ t, k: holders(t) })).filter(x => x.k).sort((a, b) => b.k - a.k || a.t - b.t);
    $("share").textContent = kept.length ? `${count(kept.length)} tokens are kept by one of ${rows} heads or more.` : "No block is full yet.";
    fill($("kept"), ["token", "position", "age, tokens", "heads", "in the latest"], kept.slice(0, 24).map(x => [D.tokens[x.t], count(x.t), count(age(x.t)), `${x.k} of ${rows}`, recent(x.t) ? "yes" : "–"]));
  }
  labelCells(); fitTables();
}
function draw() { drawMap(); drawText(); drawTables(); document.body.dataset.drawn = row; }
function choose(r) { row = r; $("layer").value = r < 0 ? -1 : Math.floor(r / H); $("head").value = r < 0 ? -1 : r % H; $("head").disabled = r < 0; draw(); }

/* ---- pointer ---- */
function tell(e, t, r) {
  const lines = [`token ${count(t)}: “${D.tokens[t]}”, age ${count(age(t))}`];
  if (r >= 0) lines.push(`${name(r)}: m = ${num(M[r * n + t])}, ${num(M[r * n + t] / mean[r])} x mean${keptOf[r].has(t) ? ", kept" : ""}`);
  lines.push(`${holders(t)} of ${rows} heads keep it${recent(t) ? "; a memory of the latest would" : ""}`);
  tip.show(e, ...lines.map(x => el("div", { text: x })));
}
const place = e => { const b = $("map").getBoundingClientRect(), at = (v, most) => Math.max(0, Math.min(most - 1, Math.floor(v * most))); return [at((e.clientX - b.left) / b.width, n), at((e.clientY - b.top) / b.height, rows)]; };
$("map").onmousemove = e => tell(e, ...place(e));
$("map").onclick = e => choose(place(e)[1]);
$("text").onmousemove = e => { const t = e.target.dataset.t; t === undefined ? tip.hide() : tell(e, +t, row); };
$("map").onmouseleave = $("text").onmouseleave = tip.hide;
for (let l = 0; l < D.layers; l++) $("layer").append(new Option(l, l));
$("layer").append(new Option("mean of all", -1));
for (let h = 0; h < H; h++) $("head").append(new Option(h, h));
$("layer").onchange = $("head").onchange = () => choose(+$("layer").value < 0 ? -1 : +$("layer").value * H + Math.max(0, +$("head").value));
$("show").onchange = drawText;
document.addEventListener("scheme", draw);
new ResizeObserver(drawMap).observe($("map").parentElement);
$("rule").textContent = D.evict;
$("lead").textContent = `${count(n)} tokens; ${D.layers} layers x ${H} heads (${many(D.parameters)} parameters) keep up to ${count(D.window)} tokens each, chosen by ${D.evict}, in blocks of ${count(D.chunk)}.`;
choose(D.layer * H + D.head);
