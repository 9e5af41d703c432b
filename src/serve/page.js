// page.js -- chat and completion next to the exact memory. Everything is shown as text, never as markup.
"use strict";
const $ = id => document.getElementById(id);
const make = (tag, cls, text) => { const e = document.createElement(tag); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
const settings = ["temperature", "top_p", "top_k", "max_tokens", "seed"];
let mode = "chat", id = "", model = null, busy = null, known = "", closed = -1, heads = {}, away = false, listed = 100, held = 0;

// ---- requests ----

function complain(text) { $("alert").textContent = text || ""; $("alert").hidden = !text; }

async function askKey() {
  const d = $("ask-key");
  if (!d.open) d.showModal();
  await new Promise(done => d.addEventListener("close", done, { once: true }));
  sessionStorage.setItem("key", $("key").value);
}

async function call(method, path, body, signal) {
  for (;;) {
    const headers = {}, key = sessionStorage.getItem("key");
    if (key) headers.Authorization = "Bearer " + key;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let r;
    try {
      r = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
    } catch (e) {
      if (signal && signal.aborted) throw e;
      lost();
      throw new Error("The server cannot be reached.");
    }
    if (r.status === 401) { await askKey(); continue; }
    if (away) { away = false; complain(""); }
    if (!r.ok) {
      let said = "The server answered " + r.status + ".";
      try { said = (await r.json()).error.message; } catch (e) { /* it said nothing more */ }
      throw Object.assign(new Error(said), { status: r.status });
    }
    return r;
  }
}
const get = async path => { const r = await call("GET", path); return r.status === 204 ? null : r.json(); };
const post = async (path, body) => (await call("POST", path, body)).json();

function lost() {
  complain("The server cannot be reached. What you typed is kept; this goes on when it is back.");
  if (away) return;
  away = true;
  const look = setInterval(async () => {
    try { if (!(await fetch("health")).ok) return; } catch (e) { return; }
    clearInterval(look);
    away = false;
    complain("");
    guard(async () => { if (!model) await begin(); else { await list(); await open(id); } });
  }, 1000);
}

async function guard(f) {
  try { await f(); } catch (e) { if (e.name !== "AbortError") complain(e.message); }
}

// Lets the browser draw and respond; otherwise queued stream data is processed without a pause.
const breathe = () => new Promise(done => { const c = new MessageChannel(); c.port1.onmessage = () => { c.port1.close(); done(); }; c.port2.postMessage(0); });

// The data of a stream's events; comments about reading go to the bar.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", since = performance.now();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    if (performance.now() - since > 8) { await breathe(); since = performance.now(); }
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const p of parts) {
      const read = /^: read (\d+) of (\d+)/.exec(p);
      if (read) $("reading").value = read[1] / read[2];
      if (p.startsWith("data: ") && p !== "data: [DONE]") {
        const e = JSON.parse(p.slice(6));
        if (e.error) throw new Error(e.error.message);
        yield e;
      }
    }
  }
}

// ---- sessions ----

function entry(s) {
  const li = make("li"), b = make("button", "", s.metadata.title || s.id);
  const about = s.position + " tokens" + (s.parent ? ", a fork" : "") + (s.where === "disk" ? ", on disk" : "");
  b.append(make("small", "", about));
  if (s.id === id) b.setAttribute("aria-current", "true");
  b.onclick = () => guard(() => open(s.id));
  li.append(b);
  return li;
}

async function list() {
  const page = await get("v1/sessions?limit=" + listed), all = page.data.map(entry);
  if (page.has_more && listed < 1000) {
    const li = make("li"), more = make("button", "", "More");
    more.onclick = () => { listed = Math.min(listed + 300, 1000); guard(list); };
    li.append(more);
    all.push(li);
  }
  $("sessions").replaceChildren(...all);
  return page.data;
}

async function open(which) {
  if (busy) stop();
  const s = await get("v1/sessions/" + which);
  id = s.id;
  if (location.hash !== "#" + id) history.replaceState(null, "", "#" + id);
  closed = -1;
  for (const b of $("sessions").querySelectorAll("button")) b.removeAttribute("aria-current");
  await show();
  await remember(true);
  await list();
}

async function fresh() {
  const s = await post("v1/sessions", {});
  await open(s.id);
  (mode === "chat" ? $("message") : $("text")).focus();
}

// ---- the conversation ----

const atEnd = (e = $("log")) => e.scrollHeight - e.scrollTop - e.clientHeight < 40;
const toEnd = (e = $("log")) => { e.scrollTop = e.scrollHeight; };
// Scrolls with the text if its end is visible. Reading heights forces a layout, so `paint` measures that time.
function adding(e, add) { const follow = atEnd(e); add(); if (follow) toEnd(e); else void e.scrollHeight; }

function bubble(role, aside) {
  const m = make("div", "m " + role + (aside ? " aside" : "")), body = make("div");
  if (role !== "text") m.append(make("b", "", role + (aside ? ", on a fork" : "")));
  m.append(body);
  $("log").append(m);
  return body;
}

// A message with its kept tokens marked. The pieces include the template's text, which is left out.
function marked(body, message, pieces, from) {
  let text = "", at = [];
  for (let p = message.from; p < message.to; p++) { at.push(text.length); text += pieces[p - from] || ""; }
  const begin = Math.max(0, text.indexOf(message.content)), end = begin + message.content.length;
  let plain = "";
  const flush = () => { if (plain) body.append(plain); plain = ""; };
  at.forEach((start, i) => {
    const stop = i + 1 < at.length ? at[i + 1] : text.length, part = text.slice(Math.max(start, begin), Math.min(stop, end));
    const n = heads[message.from + i] || 0;
    if (!part) return;
    if (!n) { plain += part; return; }
    flush();
    const m = make("mark", n > 4 ? "h3" : n > 1 ? "h2" : "", part);
    m.title = "kept by " + n + (n > 1 ? " heads" : " head");
    body.append(m);
  });
  flush();
}

async function show() {
  const typed = $("text").value, messages = await get("v1/sessions/" + id + "/messages"), follow = atEnd();
  const from = messages.length ? messages[0].from : 0, to = messages.length ? messages[messages.length - 1].to : 0;
  await count();
  const few = to - from <= 20000, pieces = few && to > from ? (await get(`v1/sessions/${id}/tokens?from=${from}&to=${to}`)).pieces : [];
  $("log").replaceChildren();
  known = "";
  for (const m of messages) {
    const body = bubble(m.role);
    if (few && !m.content.includes("\ufffd")) marked(body, m, pieces, from);
    else body.textContent = m.content;
    known += m.content;
  }
  if (mode === "text" && $("text").value === typed) { // keep what was typed meanwhile
    $("text").value = messages.every(m => m.role === "text") ? known : "";
    toEnd($("text"));
  }
  if (follow) toEnd();
}

// ---- the memory ----

async function count() {
  heads = {};
  if (!model.meta.cache_window && !model.meta.cache_chunk) return;
  const m = await get("v1/sessions/" + id + "/memory");
  for (const k of m ? m.kept : []) for (const p of k.positions) heads[p] = (heads[p] || 0) + 1;
}

async function remember(all) {
  const s = await get("v1/sessions/" + id);
  if (model.meta.cache_chunk) {
    const l = $("layer").value, h = $("head").value;
    const m = await get(`v1/sessions/${id}/memory?since=${all ? 0 : Math.max(closed, 0)}` + (l ? "&layer=" + l : "") + (h ? "&head=" + h : ""));
    if (m) {
      closed = m.closed;
      const rows = new Map();
      for (const k of m.kept) k.positions.forEach((p, i) => rows.set(p, Math.max(rows.get(p) || 0, k.scores[i])));
      $("kept").replaceChildren(...[...rows].sort((a, b) => b[0] - a[0]).slice(0, 500).map(([p, score]) => {
        const tr = make("tr");
        tr.append(make("td", "", p), make("td", "", (m.pieces[p] || "").replace(/\n/g, "\u23ce")), make("td", "", score < 0.1 ? score.toFixed(3) : score.toPrecision(3)),
          make("td", "", m.position - p));
        return tr;
      }));
      held = rows.size;
    } else if (all) { closed = -1; held = 0; $("kept").replaceChildren(); }
  }
  $("held").textContent = `${s.position} tokens read, ${held} held exactly, ${s.bytes.toLocaleString("en")} bytes at any length`;
}

// ---- generating ----

function values() {
  const v = {};
  for (const name of settings) if ($(name).value !== "") v[name] = Number($(name).value);
  return v;
}

function stop() { if (busy) busy.abort(); }

// One request on this session; text comes to `put`, at most once a frame. Drawing a long text is slow: it gets a
// quarter of the time, so that the page stays responsive.
async function write(path, body, put) {
  if (busy) return;
  busy = new AbortController();
  $("stop").disabled = false;
  complain("");
  const start = performance.now();
  let first = 0, n = 0, rate = 0, late = "", frame = 0, looked = start - 700, looking = false, next = 0;
  const paint = () => {
    const began = performance.now(), text = late;
    late = "";
    if (text) put(text);
    frame = 0;
    next = performance.now() + 3 * (performance.now() - began);
  };
  const draw = () => {
    if (frame) return;
    const wait = next - performance.now();
    frame = wait > 16 ? setTimeout(() => { frame = requestAnimationFrame(paint); }, wait) : requestAnimationFrame(paint);
  };
  try {
    const r = await call("POST", path, Object.assign({ session: id, stream: true, stream_options: { include_usage: true } }, body), busy.signal);
    for await (const e of events(r)) {
      const c = e.choices[0], text = c ? (c.delta ? c.delta.content : c.text) : "";
      if (e.usage) { // the server's own measure: a burst of tokens arrives here in no time
        n = e.usage.completion_tokens;
        rate = 1000 * n / Math.max(e.timings.predicted_ms, 1e-3);
      }
      if (!text) continue;
      if (!first) first = performance.now();
      n++;
      late += text;
      draw();
      if (!looking && performance.now() - looked > 1000) {
        looking = true;
        remember(false).catch(() => {}).finally(() => { looking = false; looked = performance.now(); });
      }
    }
  } finally {
    paint(); // (a pending frame then has nothing left to do)
    busy = null;
    $("stop").disabled = true;
    if (!rate) rate = 1000 * n / Math.max(performance.now() - (first || start), 1); // it was stopped
    $("speed").textContent = `${n} tokens, ${rate.toFixed(1)} tokens/s` +
      (first ? `, the first after ${((first - start) / 1000).toFixed(2)} s` : "");
  }
}

// Runs after a turn, however it ended. The server notices a stop at its next step; the turn is listed from then on.
async function settle() {
  let s = await get("v1/sessions/" + id);
  for (let i = 0; i < 100 && s.busy; i++) {
    await new Promise(done => setTimeout(done, 50));
    s = await get("v1/sessions/" + id);
  }
  closed = -1;
  await show();
  const begin = known.trim().slice(0, 60).split("\n")[0];
  if (!s.metadata.title && begin) await post("v1/sessions/" + id, { metadata: Object.assign(s.metadata, { title: begin }) }).catch(() => {});
  await remember(true);
  await list();
}

async function send() {
  const text = $("message").value, aside = $("aside").checked;
  if (!text || busy || away) return;
  bubble("user", aside).textContent = text;
  const body = bubble("assistant", aside);
  toEnd();
  let ok = false;
  try {
    await write("v1/chat/completions", Object.assign({ messages: [{ role: "user", content: text }] }, values(), aside ? { fork: true } : {}),
      t => adding($("log"), () => { if (!ok) { ok = true; $("message").value = ""; } body.append(t); }));
    $("message").value = "";
  } finally {
    if (!aside && !away) await guard(settle);
  }
}

async function goOn() {
  if (busy || away) return;
  const text = $("text").value;
  if (!text.startsWith(known)) {
    await post(`v1/sessions/${id}/rollback`, { position: 0 });
    known = "";
  }
  const prompt = text.slice(known.length);
  try {
    await write("v1/completions", Object.assign({ prompt }, values()), t => adding($("text"), () => $("text").setRangeText(t, $("text").value.length, $("text").value.length, "preserve")));
  } finally {
    const now = $("text").value;
    if (!away) await guard(settle);
    $("text").value = now;
    known = now;
  }
}

async function read(file) {
  const text = await file.text();
  $("reading").hidden = false;
  $("reading").removeAttribute("value");
  try {
    if (mode === "chat") await write("v1/completions", { prompt: text + "\n\n", max_tokens: 0 }, () => {});
    else await write("v1/completions", { prompt: text, max_tokens: 0 }, () => {});
  } finally {
    $("reading").hidden = true;
    if (!away) await guard(settle);
  }
}

// ---- the page ----

function setMode(m) {
  mode = m;
  $("tab-chat").setAttribute("aria-selected", m === "chat");
  $("tab-text").setAttribute("aria-selected", m === "text");
  $("tab-chat").tabIndex = m === "chat" ? 0 : -1;
  $("tab-text").tabIndex = m === "text" ? 0 : -1;
  $("chat-form").hidden = m !== "chat";
  $("text-form").hidden = m !== "text";
  $("panel").setAttribute("aria-labelledby", m === "chat" ? "tab-chat" : "tab-text");
  localStorage.setItem("mode", m);
  if (id) guard(show);
}

function setDark(on) {
  document.documentElement.classList.toggle("dark", on);
  $("dark").setAttribute("aria-checked", on);
}

async function begin() {
  model = (await get("v1/models")).data[0];
  $("model").textContent = model.id;
  document.title = "hola: " + model.id;
  for (const [which, n] of [["layer", model.meta.layers], ["head", model.meta.heads]]) {
    $(which).replaceChildren(new Option("all", ""), ...Array.from({ length: n }, (x, i) => new Option(i, i)));
  }
  const d = { temperature: model.meta.defaults.temperature, top_p: model.meta.defaults.top_p, top_k: model.meta.defaults.top_k, max_tokens: 256 };
  for (const name of settings) {
    const kept = localStorage.getItem("set-" + name);
    $(name).value = kept !== null ? kept : d[name] === undefined ? "" : d[name];
  }
  setMode(localStorage.getItem("mode") || (model.meta.chat_template_guessed ? "text" : "chat"));
  const all = await list(), wanted = decodeURIComponent(location.hash.slice(1));
  if (wanted && all.some(s => s.id === wanted)) await open(wanted);
  else if (wanted) await open(wanted).catch(() => fresh());
  else if (all.length) await open(all[0].id);
  else await fresh();
}

$("tab-chat").onclick = () => setMode("chat");
$("tab-text").onclick = () => setMode("text");
for (const t of ["tab-chat", "tab-text"]) $(t).onkeydown = e => {
  if (e.key !== "ArrowLeft" && e.key !== "ArrowRight") return;
  setMode(mode === "chat" ? "text" : "chat");
  $(mode === "chat" ? "tab-chat" : "tab-text").focus();
};
$("chat-form").onsubmit = e => { e.preventDefault(); guard(send); };
$("text-form").onsubmit = e => { e.preventDefault(); guard(goOn); };
$("message").onkeydown = e => { if (e.key === "Enter" && !e.shiftKey && !e.isComposing) { e.preventDefault(); guard(send); } };
document.addEventListener("keydown", e => { if (e.key === "Escape") stop(); });
$("stop").onclick = stop;
$("new").onclick = () => guard(fresh);
$("fork").onclick = () => guard(async () => open((await post(`v1/sessions/${id}/fork`, {})).id));
$("undo").onclick = () => guard(async () => { await post(`v1/sessions/${id}/rollback`, { turns: 1 }); await settle(); });
$("save").onclick = () => guard(async () => { await post(`v1/sessions/${id}/save`, {}); await list(); });
$("delete").onclick = () => {
  const d = $("ask-delete");
  d.returnValue = "";
  d.showModal();
  d.addEventListener("close", () => guard(async () => {
    if (d.returnValue !== "yes") return;
    await call("DELETE", "v1/sessions/" + id);
    const all = await list();
    if (all.length) await open(all[0].id);
    else await fresh();
  }), { once: true });
};
$("add").onclick = () => $("file").click();
$("file").onchange = () => { const f = $("file").files[0]; if (f) guard(() => read(f)); $("file").value = ""; };
for (const which of ["layer", "head"]) $(which).onchange = () => guard(() => remember(true));
for (const name of settings) $(name).onchange = () => localStorage.setItem("set-" + name, $(name).value);
$("dark").onclick = () => {
  const on = $("dark").getAttribute("aria-checked") !== "true";
  localStorage.setItem("dark", on);
  setDark(on);
};
const scheme = matchMedia("(prefers-color-scheme: dark)"), chosen = () => localStorage.getItem("dark");
setDark(chosen() === null ? scheme.matches : chosen() === "true");
scheme.onchange = () => { if (chosen() === null) setDark(scheme.matches); };
addEventListener("hashchange", () => { const h = decodeURIComponent(location.hash.slice(1)); if (h && h !== id) guard(() => open(h)); });
guard(begin);
