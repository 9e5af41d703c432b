/* eval.js -- the figures of hola eval --html; the tables are in the page itself. See src/plot/page.js. */
const D = data(), percent = v => short(100 * v, 4) + "", sizes = v => v >= 1024 && v % 1024 === 0 ? v / 1024 + "k" : String(v);
function legend(list) { return el("ul", { class: "legend" }, ...list.map(([c, text, kind, dash]) => el("li", {}, dash ? lineKey(c, dash) : key(c, kind), text))); }
const ours = D.models.map((m, i) => [colour(i), m.label, "dot"]);

if (D.shares.length) {
  const hi = Math.min(1, Math.max(...D.shares.flatMap(r => [r.chance || 0, ...r.values.map(v => v.v + (v.e || 0))])) * 1.08 || 1), box = figure("Shares of correct answers", "%", "big");
  box.append(legend([...ours, ...(D.shares.some(r => r.chance !== null) ? [["var(--soft)", "chance", "dash"]] : [])]));
  $("figures").append(box);
  dots(box, { title: "% correct, bars: ± 1 standard error", format: percent, hi,
    rows: D.shares.map(r => ({ label: `${r.task} ${r.metric} (n ${count(r.n)})`, chance: r.chance, values: r.values.map(v => ({ name: D.models[v.m].label, color: colour(v.m), v: v.v, e: v.e, note: v.note })) })) });
}
for (const c of D.curves) {
  const box = figure(c.task, "% correct over the length of the prompt");
  const own = c.lines.map(l => ({ name: D.models[l.m].label, color: colour(l.m), marks: true, points: l.points }));
  const paper = c.paper.map((l, i) => ({ name: l.name, color: "var(--s7)", dash: ["2 4", "7 4", "12 3"][i % 3], width: 1.6, marks: true, hollow: true, points: l.points }));
  box.append(legend([...own.map(l => [l.color, l.name]), ...paper.map(l => [l.color, l.name, "", l.dash])]));
  $("figures").append(box);
  const all = [...new Set([...own, ...paper].flatMap(l => l.points.map(p => p[0])))].sort((a, b) => a - b);
  chart(box, () => ({ x: { title: "tokens in the prompt", log: true, format: sizes, ticks: all }, y: { lo: 0, hi: 1.04, format: percent }, series: [...paper, ...own] }));
  box.append(el("figcaption", { text: `${c.n} prompts a length in this evaluation; bars: ± 1 standard error.` + (paper.length ? " " + c.note : "") }));
}
labelCells(); fitTables();
