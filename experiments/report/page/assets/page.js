"use strict";
// Everything that comes from data is put on the page as text nodes and attributes, never as markup.

const el = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const draw = (name, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
function fill(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}
const byId = (id) => document.getElementById(id);

// ---------------------------------------------------------------- numbers in words

const whole = (value) => Math.round(value).toLocaleString("en");
const signed = (text, value) => (value > 0 ? `+${text}` : text.replace("-", "−"));
const UNITS = {
  percent: (value, exact) => `${(100 * value).toFixed(exact ? 1 : 0).replace("-", "−")}%`,
  points: (value, exact) => signed((100 * value).toFixed(exact ? 1 : 0), value),
  tokens: whole,
  times: (value, exact) => (exact ? value.toFixed(2) : String(+value.toPrecision(2))),
  ratio: (value) => value.toFixed(2),
};
const SUFFIX = { tokens: " tokens", times: " times", points: " points" };

function interval(unit, { y, low, high }) {
  const text = UNITS[unit](y, true) + (SUFFIX[unit] ?? "");
  if (low == null && high == null) return text;
  const least = low == null ? "0" : UNITS[unit](low, true);
  return `${text} [${least}, ${high == null ? "∞" : UNITS[unit](high, true)}]`;
}

// ---------------------------------------------------------------- charts

const HIGH = 215, LEFT = 44, RIGHT = 18, TOP = 8, BOTTOM = 36;
const MARKS = [
  "M-3.4 0a3.4 3.4 0 1 0 6.8 0a3.4 3.4 0 1 0 -6.8 0Z", "M0 -4.1L3.9 3.1H-3.9Z",
  "M-3.1 -3.1H3.1V3.1H-3.1Z", "M0 -4.4L3.9 0L0 4.4L-3.9 0Z", "M0 4.1L3.9 -3.1H-3.9Z",
  "M-4 0L3 -3.9V3.9Z", "M4 0L-3 -3.9V3.9Z",
];
const CONTROL_MARKS = [
  "M0 -4.6L1.3 -1.4L4.4 -1.4L1.9 .7L2.8 4L0 2.1L-2.8 4L-1.9 .7L-4.4 -1.4L-1.3 -1.4Z",
  "M-1.2 -4H1.2V-1.2H4V1.2H1.2V4H-1.2V1.2H-4V-1.2H-1.2Z",
  "M-3.6 -1.9L-1.9 -3.6L0 -1.7L1.9 -3.6L3.6 -1.9L1.7 0L3.6 1.9L1.9 3.6L0 1.7L-1.9 3.6L-3.6 1.9L-1.7 0Z",
];
// A style is a role with a number; controls have colours and marks of their own.
const FULL = { role: "full", number: 0 };
const numbered = (at) => ({ role: "method", number: at });
const styleOf = ({ style: { role, number } }) =>
  role === "full" || role === "null" ? "sfull" : role === "control" ? `sc${number % 3}` : `s${number % 6}`;
const markOf = ({ role, number }, attributes = {}) => {
  const among = role === "control" ? CONTROL_MARKS : MARKS;
  return draw("path", { d: among[number % among.length], ...attributes });
};

function scale(axis, values, from, to) {
  // From data to the drawing, and where the ticks are.
  const known = values.length ? values : [0, 1];
  let low = axis.low ?? Math.min(...known), high = axis.high ?? Math.max(...known);
  if (axis.is_log) {
    const ticks = axis.ticks?.length ? axis.ticks : null;
    if (ticks) [low, high] = [low / 1.35, high * 1.35];
    else [low, high] = [low / 1.15, high * 1.15];
    const reach = Math.log(high) - Math.log(low) || 1;
    // A bound may be 0, which a logarithm cannot place: it lies at the edge.
    const at = (value) => from + ((Math.log(Math.max(value, low)) - Math.log(low)) / reach) * (to - from);
    return { at, ticks: ticks ?? logTicks(low, high), low, high };
  }
  if (high === low) high = low + 1;
  const step = nice((high - low) / 4);
  if (axis.low == null) low = Math.floor(low / step + 1e-9) * step;
  if (axis.high == null) high = Math.ceil(high / step - 1e-9) * step;
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-6; at++) ticks.push(at * step || 0);
  return { at: (value) => from + ((value - low) / (high - low)) * (to - from), ticks, low, high };
}
function nice(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((by) => by * power).find((step) => step >= rough * 0.999);
}
function logTicks(low, high) {
  for (const by of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const digit of by) {
        const tick = +(digit * 10 ** power).toPrecision(1);
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    if (ticks.length <= 7) return ticks;
  }
  return [low, high];
}

/* One panel. `spec`: label, x, y, lines, levels, uprights, tell(line, point), values (for a
   scale that several panels share). `say` takes the point under the pointer or the arrow keys. */
function panel(spec, say, WIDE = 340) {
  const svg = draw("svg", {
    viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", tabindex: 0, "aria-label": spec.label,
  });
  const points = marked(spec.lines);
  const x = scale(spec.x, spec.x.ticks?.length ? spec.x.ticks : [
    ...points.flatMap((point) => [point.x, point.left ?? point.x, point.right ?? point.x]),
  ], LEFT, WIDE - RIGHT);
  const y = scale(spec.y, spec.values, HIGH - BOTTOM, TOP);
  for (const tick of y.ticks)
    svg.append(
      draw("line", { class: "grid", x1: LEFT, x2: WIDE - RIGHT, y1: y.at(tick), y2: y.at(tick) }),
      draw("text", { x: LEFT - 6, y: y.at(tick) + 4, "text-anchor": "end" }, UNITS[spec.y.unit](tick)),
    );
  for (const tick of x.ticks)
    svg.append(
      draw("line", { class: "axis", x1: x.at(tick), x2: x.at(tick), y1: HIGH - BOTTOM, y2: HIGH - BOTTOM + 4 }),
      draw("text", { x: x.at(tick), y: HIGH - BOTTOM + 16, "text-anchor": "middle" }, UNITS[spec.x.unit](tick)),
    );
  svg.append(
    draw("line", { class: "axis", x1: LEFT, x2: WIDE - RIGHT, y1: HIGH - BOTTOM, y2: HIGH - BOTTOM }),
    draw("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 4, "text-anchor": "middle" }, spec.x.label),
  );
  for (const level of spec.levels ?? []) {
    const { y: value, low, high } = level.points[0], isFull = level.style.role === "full";
    if (isFull && low !== null && high !== null)
      svg.append(draw("rect", {
        class: "band", x: LEFT, width: WIDE - RIGHT - LEFT, y: y.at(high), height: y.at(low) - y.at(high),
      }));
    svg.append(draw("line", {
      class: isFull ? "level" : "level null", x1: LEFT, x2: WIDE - RIGHT, y1: y.at(value), y2: y.at(value),
    }));
  }
  for (const upright of spec.uprights ?? [])
    svg.append(draw("line", {
      class: `upright ${styleOf(upright)}`, x1: x.at(upright.x), x2: x.at(upright.x), y1: TOP, y2: HIGH - BOTTOM,
    }));
  const places = [];
  spec.lines.forEach((line, at) => drawLine(svg, spec, line, x, y, at, places));
  listen(svg, WIDE, places, (place) => say(place ? spec.tell(place.line, place.point) : ""));
  return svg;
}

function drawLine(svg, spec, line, x, y, at, places) {
  // Lines stand a little to the side of each other, so that bars do not hide bars.
  const shift = spec.x.ticks?.length ? 2 ** (0.07 * (at - (spec.lines.length - 1) / 2)) : 1;
  const style = styleOf(line);
  const all = line.points.map((point) =>
    point.y === null ? null : { line, point, u: x.at(point.x * shift), v: y.at(point.y) });
  const known = all.filter((place) => place);
  if (!spec.scatter) {
    // What is not known parts the line.
    let path = "", begun = false;
    for (const place of all) {
      if (place) {
        const [u, v] = [place.u.toFixed(1), place.v.toFixed(1)];
        if (!begun) path += `M${line.step ? x.at(0).toFixed(1) : u} ${v}`;
        path += line.step ? `V${v}H${u}` : `L${u} ${v}`;
      }
      begun = place !== null;
    }
    if (path) svg.append(draw("path", { class: `line ${style}`, d: path }));
    for (const { point, u } of known)
      if (point.low != null || point.high != null)
        svg.append(draw("line", {
          class: `bar ${style}`, x1: u, x2: u, y1: y.at(point.low ?? y.low), y2: y.at(point.high ?? y.high),
        }));
  }
  for (const { point, u, v } of line.bare ? [] : known)
    svg.append(markOf(line.style, {
      class: `mark ${style}${spec.scatter ? " hollow faint" : ""}`,
      transform: `translate(${u.toFixed(1)} ${v.toFixed(1)})`, "data-y": point.y, "data-x": point.x,
    }));
  for (const point of totals(line)) {
    const [u, v] = [x.at(point.x), y.at(point.y)];
    if (point.low !== null && point.high !== null)
      svg.append(draw("line", { class: `bar ${style}`, x1: u, x2: u, y1: y.at(point.low), y2: y.at(point.high) }));
    if (point.left != null && point.right != null)
      svg.append(draw("line", { class: `bar ${style}`, x1: x.at(point.left), x2: x.at(point.right), y1: v, y2: v }));
    known.push({ line, point, u, v });
    svg.append(markOf(line.style, {
      class: `mark total ${style}`, "data-x": point.x, "data-y": point.y,
      transform: `translate(${u.toFixed(1)} ${v.toFixed(1)}) scale(1.8)`,
    }));
  }
  places.push(...known);
}

function listen(svg, wide, places, say) {
  const ring = draw("circle", { class: "ring", r: 7, visibility: "hidden" });
  svg.append(ring);
  let chosen = -1;
  const choose = (at) => {
    chosen = at;
    const place = places[at];
    ring.setAttribute("visibility", place ? "visible" : "hidden");
    if (place) {
      ring.setAttribute("cx", place.u);
      ring.setAttribute("cy", place.v);
    }
    say(place);
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), by = wide / box.width;
    const u = (event.clientX - box.left) * by, v = (event.clientY - box.top) * by;
    let best = -1, least = 18 ** 2;
    places.forEach((place, at) => {
      const far = (place.u - u) ** 2 + (place.v - v) ** 2;
      if (far < least) [best, least] = [at, far];
    });
    if (best !== chosen) choose(best);
  });
  svg.addEventListener("pointerleave", () => choose(-1));
  svg.addEventListener("blur", () => choose(-1));
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !places.length) return;
    event.preventDefault();
    choose(chosen < 0 ? (step > 0 ? 0 : places.length - 1) : (chosen + step + places.length) % places.length);
  });
}

function legend(lines, extra) {
  const key = (line) => {
    const parts = [];
    if (line.mark !== "none") parts.push(markOf(line.style, { class: `mark ${styleOf(line)}`, transform: "translate(15 6)" }));
    const rule = line.level ? line.level : line.upright ? `upright ${styleOf(line)}` : `line ${styleOf(line)}`;
    const ends = line.upright ? { x1: 15, x2: 15, y1: 0, y2: 12 } : { x1: 1, x2: 29, y1: 6, y2: 6 };
    if (line.rule !== "none") parts.unshift(draw("line", { class: rule, ...ends }));
    return el("li", {}, draw("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" }, ...parts), line.name);
  };
  return el("ul", { class: "legend" }, ...[...lines, ...extra].map(key));
}

const totals = (line) => (line.total ? [line.total] : []);
const marked = (lines) => lines.flatMap((line) => [...line.points, ...totals(line)]);
const bounds = (lines) => marked(lines).flatMap(({ y, low, high }) => [y, low, high]).filter((value) => value != null);

function figure(chart) {
  const say = el("output", { class: "readout", "aria-live": "polite" });
  const lines = new Map();
  for (const part of chart.panels)
    for (const line of part.lines) if (!lines.has(line.name)) lines.set(line.name, line);
  // Costs on one logarithmic scale can be compared across panels; so can points of one scatter, of
  // which the large ones alone have their intervals drawn.
  const scatter = chart.y.unit === "points", shared = chart.y.is_log || scatter;
  const values = chart.panels.map((part) => scatter
    ? [0, ...part.lines.flatMap((line) => line.points.map((point) => point.y)), ...bounds(part.lines.map((line) => ({ points: totals(line) })))]
    : bounds([...part.lines, ...part.levels]).filter((value) => !chart.y.is_log || value > 0));
  const tell = (part) => (line, point) => scatter
    ? `${part.title}, ${line.name}, ${point.words}: ${chart.x.label} ${interval("percent", { y: point.x, low: point.left, high: point.right })}, accuracy ${interval("points", point)}`
    : `${part.title.split(" (")[0]}, ${line.name}, ${chart.x.unit === "percent" ? `depth ${UNITS.percent(point.x)}` : `budget ${point.x}`}: ${interval(chart.y.unit, point)}${point.words ? `; ${point.words}` : ""}`;
  const panels = chart.panels.map((part, at) => {
    const spec = {
      ...chart, ...part, scatter, label: `${chart.title}, ${part.title}`,
      values: shared ? values.flat() : values[at], tell: tell(part),
    };
    return el("div", { class: "panel" },
      el("h4", {}, part.title), panel(spec, (text) => { say.textContent = text; }),
      ...part.absent.map((reason) => el("p", { class: "absent" }, reason)));
  });
  const roles = new Set(chart.panels.flatMap((part) => part.levels.map((level) => level.style.role)));
  const extra = [["full", "full attention", "level"], ["null", "null: full attention against itself", "level null"]]
    .filter(([role]) => roles.has(role))
    .map(([, name, level]) => ({ name, style: FULL, mark: "none", level }));
  const keys = [...lines.values()].map((line) => (scatter ? { ...line, rule: "none" } : line));
  return el("figure", {},
    el("figcaption", {},
      el("h3", {}, chart.title + (chart.of ? ` (${chart.of})` : "")),
      el("p", { class: "note" }, chart.note)),
    legend(keys, extra), el("div", { class: "panels" }, ...panels), say);
}

// ---------------------------------------------------------------- traces

async function inflated(id) {
  const packed = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

const CHOICES = {
  answer: {
    "": "any", right: "right", wrong: "wrong",
    lost: "wrong, full attention right", gained: "right, full attention wrong",
  },
  ending: { "": "any", ok: "by itself", capped: "cut at the cap" },
};
const SHOWN = 200; // runs listed before one asks for more
const verdict = (correct) => correct === null ? "not judged" : correct ? "✓ right" : "✗ wrong";
const verdictClass = (correct) => (correct === null ? "" : correct ? "right" : "wrong");
const place = (run) => (run.item.startsWith(`${run.dataset}/`) ? run.item : `${run.dataset} · ${run.item}`);
const method = (run) => run.backend + (run.budget === null ? "" : ` ${run.budget}`) + (run.penalty === "none" ? "" : ` + ${run.penalty}`);

class Viewer {
  constructor(table) {
    this.runs = table.runs.map((line, number) =>
      Object.fromEntries([["number", number], ...table.columns.map((name, at) => [name, line[at]])]));
    this.full = new Map(this.runs.filter((run) => run.full).map((run) => [run.block, run]));
    this.several = new Set(this.runs.map((run) => run.sample)).size > 1;
    this.detectors = [...new Set(this.runs.flatMap((run) => Object.keys(run.fired)))].sort();
    this.blocks = new Map();
    this.isPaired = true;
    this.filters = {};
    for (const label of byId("filters").children) this.filter(label);
    byId("list").addEventListener("keydown", (event) => this.move(event));
    this.list();
  }

  filter(label) {
    const name = label.dataset.name, select = label.querySelector("select");
    const values = new Map(Object.entries(CHOICES[name] ?? { "": "any" }));
    if (name === "fired") {
      for (const name of this.detectors) values.set(`fired ${name}`, `${name} fired`);
      if (this.detectors.length) values.set("none", "none fired");
    } else if (!CHOICES[name]) {
      const known = [...new Set(this.runs.map((run) => run[name]))];
      if (name === "budget") known.sort((a, b) => (a ?? 0) - (b ?? 0));
      for (const value of known) values.set(`= ${value}`, value === null ? "none" : String(value));
    }
    for (const [value, words] of values) select.append(el("option", { value }, words));
    label.hidden = values.size < 3 && name !== "fired" || values.size < 2;
    select.addEventListener("change", () => this.list());
    this.filters[name] = select;
  }

  passes(run) {
    return Object.entries(this.filters).every(([name, { value }]) => {
      if (value === "") return true;
      if (name === "ending") return run.status === value;
      if (name === "fired")
        return value === "none" ? !Object.keys(run.fired).length : value.slice(6) in run.fired;
      if (name !== "answer") return value === `= ${run[name]}`;
      if (value === "right" || value === "wrong") return run.correct === (value === "right");
      const full = this.full.get(run.block);
      return full !== undefined && run.correct === (value === "gained") && full.correct === (value === "lost");
    });
  }

  list(limit = SHOWN) {
    const matching = this.runs.filter((run) => this.passes(run));
    byId("count").textContent = `${whole(matching.length)} of ${whole(this.runs.length)} runs`;
    const buttons = matching.slice(0, limit).map((run) => el("li", {}, this.button(run)));
    if (matching.length > limit) {
      const more = () => {
        this.list(limit + SHOWN);
        byId("list").querySelectorAll("button")[limit].focus();
      };
      buttons.push(el("li", {}, el("button", { type: "button", class: "more", tabindex: -1, onclick: more }, `show more of ${whole(matching.length - limit)} others`)));
    }
    byId("list").replaceChildren(...buttons);
    this.rove();
  }

  button(run) {
    return el("button", { type: "button", tabindex: -1, "data-run": run.number, onclick: () => this.open(run) },
      el("span", { class: verdictClass(run.correct), "aria-label": verdict(run.correct) }, verdict(run.correct)[0] === "n" ? "·" : verdict(run.correct)[0]),
      el("span", {}, method(run)),
      el("span", { class: "count" }, `${whole(run.tokens)}${run.status === "capped" ? " cut" : ""}`),
      el("span", { class: "item" }, `${place(run)}${this.several ? ` · sample ${run.sample}` : ""}`));
  }

  rove() {
    // A button of the list takes the tab key, so that a second button leads on to the text.
    const buttons = [...byId("list").querySelectorAll("button")];
    for (const button of buttons) {
      const here = this.now && Number(button.dataset.run) === this.now.number;
      button.tabIndex = here ? 0 : -1;
      if (here) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
    if (buttons.length && !buttons.some((button) => button.tabIndex === 0)) buttons[0].tabIndex = 0;
  }

  move(event) {
    const buttons = [...byId("list").querySelectorAll("button")], at = buttons.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + 10, PageUp: at - 10, Home: 0, End: buttons.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, to))];
    for (const button of buttons) button.tabIndex = button === next ? 0 : -1;
    next.focus();
  }

  async block(at) {
    if (!this.blocks.has(at)) {
      if (this.blocks.size > 8) this.blocks.clear();
      this.blocks.set(at, inflated(`problem-${at}`));
    }
    return this.blocks.get(at);
  }

  async open(run) {
    this.now = run;
    this.rove();
    history.replaceState(null, "", `#run-${run.block}-${run.at}`);
    const block = await this.block(run.block);
    if (this.now === run) this.show(run, block);
  }

  show(run, block) {
    const trace = block.runs[run.at], full = this.full.get(run.block);
    const partner = full && full !== run ? { run: full, trace: block.runs[full.at] } : null;
    const isPaired = partner && this.isPaired;
    const say = el("output", { class: "readout", "aria-live": "polite" });
    const tell = (text) => { say.textContent = text; };
    const left = this.text(run, trace, isPaired ? trace.parts : null, tell);
    const right = isPaired ? this.text(full, partner.trace, trace.parts, tell) : null;
    const boxes = right ? [left, right] : [left];
    byId("trace").replaceChildren(
      el("h3", { tabindex: -1 }, `${place(run)}, ${method(run)}`),
      this.facts(run, trace, block, full),
      this.tools(trace, partner, boxes, () => this.show(run, block)),
      say,
      el("div", { class: "reading" }, el("div", { class: "texts" }, ...boxes.map(({ part }) => part)), this.curves(run, trace, partner, tell)),
      el("details", {}, el("summary", {}, "The prompt"), el("pre", { class: "prompt", tabindex: 0, dir: "auto" }, block.prompt)),
      ...trace.watched.filter((watched) => watched.text !== null).map((watched) =>
        el("details", {}, el("summary", {}, `Its text with ${watched.name}: ${whole(watched.tokens)} tokens, ${verdict(watched.correct)}`),
          el("pre", { class: "prompt", tabindex: 0, dir: "auto" }, watched.text))),
    );
    if (isPaired && trace.parts !== null) boxes.forEach((box) => jump(box, ".parting"));
  }

  facts(run, trace, block, full) {
    const facts = [[el("span", { class: verdictClass(run.correct) }, verdict(run.correct))]];
    facts.push(["answer ", el("b", {}, trace.answer ?? "none"), ", gold ", el("b", {}, block.gold ?? "unknown")]);
    const times = full && full !== run && full.tokens && full.status !== "capped"
      ? `, ${(run.tokens / full.tokens).toFixed(2)} times full attention’s ${whole(full.tokens)}` : "";
    facts.push([`${whole(run.tokens)} tokens${times}`]);
    facts.push([run.status === "capped" ? "cut at the cap" : `ended by ${trace.finish}`]);
    if (full && full !== run) facts.push(["full attention ", el("span", { class: verdictClass(full.correct) }, verdict(full.correct))]);
    facts.push(["run ", el("code", {}, trace.id.slice(0, 8))]);
    return el("ul", { class: "facts" }, ...facts.map((parts) => el("li", {}, ...parts)));
  }

  tools(trace, partner, boxes, again) {
    const parts = [];
    if (partner) {
      const toggle = () => { this.isPaired = !this.isPaired; again(); byId("paired").focus(); };
      parts.push(el("button", { type: "button", id: "paired", "aria-pressed": String(this.isPaired), onclick: toggle }, "next to full attention"));
    }
    const go = (name, selector) => el("button", { type: "button", onclick: () => boxes.forEach((box) => jump(box, selector)) }, name);
    const jumps = [go("start", null)];
    if (boxes.length > 1 && trace.parts !== null) jumps.push(go("where they part", ".parting"));
    for (const watched of trace.watched)
      if (watched.at !== null) jumps.push(go(`${watched.name}, token ${whole(watched.at)}`, `[data-fired="${this.detectors.indexOf(watched.name)}"]`));
    jumps.push(go("end", "end"));
    parts.push(el("span", {}, "go to"), ...jumps);
    return el("div", { class: "tools" }, ...parts);
  }

  /* A text with its marks. The marks are empty elements: what a reader copies is the text. */
  text(run, trace, parts, tell) {
    const offset = (tokens) => trace.lengths.slice(0, tokens).reduce((sum, length) => sum + length, 0);
    const marks = [];
    if (parts !== null) {
      const words = `The texts are the same for ${whole(parts)} tokens and part here`;
      marks.push({ at: offset(parts), made: flag("parting", `▸ parts, ${whole(parts)}`, words, tell) });
    }
    for (const watched of trace.watched) {
      if (watched.at === null) continue;
      const saved = run.tokens ? `, ${UNITS.percent(1 - watched.paid / run.tokens, true)} of its tokens saved` : "";
      const words = `${watched.name} fired at token ${whole(watched.at)} (action ${watched.action}): ${whole(watched.tokens)} tokens in the output${saved}, answer ${verdict(watched.correct)}`;
      const made = flag(`fired s${this.detectors.indexOf(watched.name) % 6}`, `⚑ ${watched.name} ${whole(watched.at)}`, words, tell);
      made.setAttribute("data-fired", this.detectors.indexOf(watched.name));
      marks.push({ at: offset(watched.at), made });
    }
    marks.sort((a, b) => a.at - b.at);
    const pre = el("pre", { tabindex: 0, dir: "auto", role: "region", "aria-label": `Text of ${method(run)}` });
    const same = parts === null ? 0 : offset(parts);
    let start = 0;
    for (const { at, made } of [...marks, { at: trace.text.length, made: null }]) {
      if (at > start) {
        const piece = trace.text.slice(start, at);
        pre.append(at <= same ? el("span", { class: "same" }, piece) : piece);
        start = at;
      }
      if (made) pre.append(made);
    }
    const title = `${run.full ? "full attention" : method(run)}: ${whole(run.tokens)} tokens, ${verdict(run.correct)}`;
    return { part: el("div", {}, el("h4", {}, title), pre), pre };
  }

  curves(run, trace, partner, tell) {
    const uprights = trace.watched.filter((watched) => watched.at !== null)
      .map((watched) => ({ x: watched.at, style: numbered(this.detectors.indexOf(watched.name)), name: `${watched.name} ${whole(watched.at)}`, mark: "none", upright: true }));
    const line = (name, style, points) => ({ name, style, points, bare: true });
    const compressed = (of) => [{ x: 0, y: 0, raw: 0 }, ...of.curve.map(([x, raw, y]) => ({ x, y, raw }))];
    const keys = (of) => of.keys.map(([x, y]) => ({ x, y }));
    const both = (make, step) => [
      ...(partner ? [{ ...line("full attention", FULL, make(partner.trace)), step }] : []),
      { ...line(method(run), run.full ? FULL : numbered(0), make(trace)), step },
    ];
    const small = (title, note, lines, words) => el("div", {},
      el("h4", {}, title),
      panel({
        label: `${title}, by tokens`, x: { unit: "tokens", from: 0, label: "tokens" }, y: { unit: "tokens", from: 0 },
        lines, uprights, values: bounds(lines), tell: words,
      }, tell, 270),
      el("p", { class: "absent" }, note));
    const key = [...both(() => [], false), ...uprights].map((each) => ({ mark: "none", ...each }));
    return el("div", { class: "curves" }, legend(key, []),
      small("Compressed size, bytes", "Flat where the text repeats itself.", both(compressed, false), (of, point) =>
        `${of.name}, ${whole(point.x)} tokens: ${whole(point.raw)} bytes compress to ${whole(point.y)}${point.raw ? `, ratio ${(point.y / point.raw).toFixed(2)}` : ""}`),
      small("Keys read per token", "Over all layers and KV heads, as costs count them.", both(keys, true), (of, point) =>
        `${of.name}, up to token ${whole(point.x)}: ${whole(point.y)} keys per token`));
  }
}

function flag(kind, label, words, tell) {
  return el("span", {
    class: kind, tabindex: 0, role: "img", "aria-label": words, title: words, "data-label": label,
    onfocus: () => tell(words), onblur: () => tell(""), onpointerenter: () => tell(words), onpointerleave: () => tell(""),
  });
}

function jump({ pre }, selector) {
  const mark = selector && selector !== "end" ? pre.querySelector(selector) : null;
  if (selector === null) pre.scrollTop = 0;
  else if (selector === "end") pre.scrollTop = pre.scrollHeight;
  else if (mark) pre.scrollTop = mark.offsetTop - pre.clientHeight / 3;
}

// ---------------------------------------------------------------- the page

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
function theme(change) {
  if (change) document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  byId("theme").setAttribute("aria-pressed", String(isDark()));
}
byId("theme").addEventListener("click", () => theme(true));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme(false));
theme(false);

const charts = JSON.parse(byId("chart-data").textContent);
if (charts.length) byId("charts").append(...charts.map(figure));
else byId("charts").append(el("p", {}, "There is no sparse configuration to draw."));

inflated("index").then((table) => {
  const viewer = new Viewer(table);
  const [, block, at] = /^#run-(\d+)-(\d+)$/.exec(location.hash) ?? [];
  const run = viewer.runs.find((other) => other.block === Number(block) && other.at === Number(at));
  if (run) viewer.open(run);
}, (error) => {
  byId("trace").textContent = `This browser cannot unpack the traces: ${error.message}`;
});
