// Live charts, by uPlot. Colours come from the style sheet, so that they follow the theme.

import uPlot from "/vendor/uPlot.esm.js";
import { bytes, bytesPerSecond, latency, percent, rate } from "/format.js";
import { el, text } from "/dom.js";

const HEIGHT = 190;
const SVG = "http:" + "//www.w3.org/2000/svg";
// Lines also differ in their dashes, for readers who cannot distinguish the colours.
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2]];

const LATENCY = {
  id: "latency", title: "Mean latency", show: latency, log: true,
  series: [
    ["readHitUs", "read hit"], ["readMissUs", "read miss"],
    ["writeMemoryUs", "memory write"], ["writeDiskUs", "disk write"],
  ],
};

// The charts for all volumes together, which a single volume has too. A series is the name of a
// figure in the model, and its label.
export const CHARTS = [
  {
    id: "requests", title: "Requests of clients", show: rate,
    series: [["reads", "reads"], ["writes", "writes"]],
  },
  {
    id: "hit", title: "Served from memory", show: percent, most: 100,
    series: [["hit", "all"], ["readHit", "reads"]],
  },
  LATENCY,
  {
    id: "disk", title: "I/Os of clients, and of the disks", show: rate,
    series: [["clientIos", "of clients"], ["diskReads", "disk reads"],
      ["diskWrites", "disk writes"]],
  },
  {
    id: "dirty", title: "Dirty data, not on the disks yet", show: bytes, binary: true, fill: true,
    series: [["dirty", "dirty"]],
  },
  {
    id: "memory", title: "Data in memory", show: bytes, binary: true, fill: true,
    series: [["cached", "in memory"]],
  },
];

// Only for one volume: busy times of several disks do not add up.
export const MORE_CHARTS = [
  {
    id: "throughput", title: "Data of clients", show: bytesPerSecond, binary: true,
    series: [["readBytes", "read"], ["writeBytes", "written"]],
  },
  {
    id: "disk-latency", title: "Mean latency of the disk", show: latency, log: true,
    series: [["diskReadUs", "read"], ["diskWriteUs", "write"]],
  },
  {
    id: "busy", title: "Disk busy", show: percent, most: 100, fill: true,
    series: [["busy", "busy"]],
  },
];

// A value at an axis, without trailing zeroes after the decimal point.
const short = (shown) => shown.replace(/\.0+(?= |\/|$)/, "");

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (index) => style(`--series-${index + 1}`);
const font = () => `12px ${style("--font")}`;

const two = (number) => String(number).padStart(2, "0");

function clock(seconds, withSeconds) {
  const date = new Date(seconds * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
  return withSeconds ? `${time}:${two(date.getSeconds())}` : time;
}

function day(seconds) {
  return new Date(seconds * 1000).toLocaleDateString(undefined, { day: "numeric", month: "short" });
}

// A time for the legend, with the date if it is not today.
function stamp(seconds) {
  const isToday = new Date(seconds * 1000).toDateString() === new Date().toDateString();
  return isToday ? clock(seconds, true) : `${day(seconds)}, ${clock(seconds, false)}`;
}

function axis(more) {
  return {
    stroke: () => style("--muted"),
    font: font(),
    grid: {
      stroke: () => style("--grid"), width: 1, ...(more.filter ? { filter: more.filter } : {}),
    },
    ticks: { show: false },
    ...more,
  };
}

// A sample of a line, for the legend.
function sample(index) {
  const svg = document.createElementNS(SVG, "svg");
  const line = document.createElementNS(svg.namespaceURI, "line");
  svg.setAttribute("class", `sample s${index + 1}`);
  svg.setAttribute("aria-hidden", "true");
  const places = { x1: 0, y1: 5, x2: 30, y2: 5, "stroke-dasharray": DASHES[index].join(" ") };
  for (const [name, value] of Object.entries(places)) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

// An element `figure` with a chart and a legend, whose values follow the cursor.
export class Chart {
  constructor(definition) {
    this.definition = definition;
    this.values = definition.series.map(() => el("b"));
    this.time = el("span", { class: "muted" });
    const legend = definition.series.map(([, label], index) =>
      el("span", { class: "key" }, sample(index), el("span", {}, label), this.values[index]));
    this.holder = el("div", { class: "plot", role: "img" });
    this.node = el("figure", { class: "card chart", "data-chart": definition.id },
      el("figcaption", {}, el("h3", {}, definition.title), this.time),
      this.holder, el("div", { class: "legend" }, ...legend));
    this.data = [[], ...definition.series.map(() => [])];
    this.plot = null;
    this.described = 0;
    const now = Date.now() / 1000;
    this.range = [now - 60, now];
  }

  // Call when the node is in the document: the chart has the width of its holder.
  show() {
    if (this.plot) return;
    this.plot = new uPlot(this.options(), this.data, this.holder);
    this.observer = new ResizeObserver(() => {
      const { clientWidth } = this.holder;
      if (clientWidth && clientWidth !== this.plot.width) {
        this.plot.setSize({ width: clientWidth, height: HEIGHT });
      }
    });
    this.observer.observe(this.holder);
  }

  destroy() {
    this.observer?.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  options() {
    const { series, show, log, most, binary, fill } = this.definition;
    const y = log
      ? { distr: 3, log: 10, range: (_, min, max) => logRange(min, max) }
      : { range: (_, min, max) => [0, most ?? (max > 0 ? max * 1.1 : 1)] };
    return {
      width: this.holder.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "forebay" }, drag: { x: false, y: false }, y: false,
        points: { size: 6 },
      },
      scales: { x: { time: true, range: () => this.range }, y },
      axes: [
        axis({
          space: 70, size: 26, gap: 6,
          values: (_, splits, __, ___, step) =>
            splits.map((at) => (step < 43200 ? clock(at, step < 60) : day(at))),
        }),
        axis({
          size: 66, gap: 6,
          space: 32,
          incrs: binary ? BINARY_STEPS : undefined,
          values: (_, splits) => splits.map((value) => (value === null ? "" : short(show(value)))),
          ...(log ? { filter: (_, splits) => splits.map(powerOfTen) } : {}),
        }),
      ],
      series: [{}, ...series.map((_, index) => ({
        stroke: () => colour(index), width: 2, dash: DASHES[index], points: { show: false },
        spanGaps: false, fill: fill ? () => `${colour(index)}33` : undefined,
      }))],
      hooks: { setCursor: [() => this.legend()] },
    };
  }

  update(points, span) {
    const now = Date.now() / 1000;
    const first = points.length ? points[0].time : now;
    this.range = [Math.max(now - span, Math.min(first, now - 30)), now];
    this.data = columns(points, this.definition.series);
    this.plot?.setData(this.data);
    this.legend();
    this.describe(now);
  }

  redraw() {
    this.plot?.redraw(false, true);
  }

  legend() {
    const at = this.plot?.cursor.idx ?? null;
    const index = at ?? this.data[0].length - 1;
    text(this.time, at === null ? "" : stamp(this.data[0][at]));
    this.values.forEach((value, series) =>
      text(value, this.definition.show(this.data[series + 1][index] ?? null)));
  }

  // Describes the chart for screen readers, at most once in ten seconds.
  describe(now) {
    if (now - this.described < 10) return;
    this.described = now;
    const { title, show, series } = this.definition;
    const parts = series.map(([, label], index) => {
      const values = this.data[index + 1].filter((value) => value !== null);
      if (!values.length) return `${label}: none`;
      const [least, most] = [Math.min(...values), Math.max(...values)];
      return `${label}: now ${show(values.at(-1))}, from ${show(least)} to ${show(most)}`;
    });
    this.holder.setAttribute("aria-label", `Chart. ${title}. ${parts.join(". ")}`);
  }
}

// The columns of uPlot. A missing interval breaks the line.
function columns(points, series) {
  const data = [[], ...series.map(() => [])];
  let before = null;
  for (const point of points) {
    if (before !== null && point.time - before > Math.max(40, 1.5 * (point.length ?? 0))) {
      data[0].push((before + point.time) / 2);
      for (let index = 1; index < data.length; index += 1) data[index].push(null);
    }
    before = point.time;
    data[0].push(point.time);
    series.forEach(([name], index) => data[index + 1].push(point[name] ?? null));
  }
  return data;
}

const BINARY_STEPS = Array.from({ length: 50 }, (_, power) => 2 ** power);

function logRange(min, max) {
  if (min === null || !(min > 0)) return [1, 1000];
  return [10 ** Math.floor(Math.log10(min)), 10 ** Math.ceil(Math.log10(max * 1.01))];
}

const powerOfTen = (value) => (Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6)
  ? value : null);

// The hit rate over the size of the memory, with two marks: the present size, and the chosen one.
export class Curve {
  constructor(label) {
    this.holder = el("div", { class: "plot", role: "img", "aria-label": label });
    this.marks = { now: null, chosen: null };
    this.data = [[0, 1], [0, 0]];
  }

  show() {
    if (this.plot) return;
    this.plot = new uPlot({
      width: this.holder.clientWidth || 300,
      height: 220,
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: false, distr: 3, log: 2 }, y: { range: () => [0, 100] } },
      axes: [
        axis({
          space: 60, size: 26, gap: 6,
          splits: (_, __, min, max) => powersOfTwo(min, max),
          values: (_, splits) => splits.map((value) => (value === null ? "" : short(bytes(value)))),
        }),
        axis({ size: 54, values: (_, splits) => splits.map(percent) }),
      ],
      series: [{}, {
        stroke: () => colour(0), width: 2, points: { show: false },
        fill: () => `${colour(0)}22`,
      }],
      hooks: { draw: [(plot) => this.drawMarks(plot)] },
    }, this.data, this.holder);
    this.observer = new ResizeObserver(() => {
      const { clientWidth } = this.holder;
      if (clientWidth && clientWidth !== this.plot.width) {
        this.plot.setSize({ width: clientWidth, height: 220 });
      }
    });
    this.observer.observe(this.holder);
  }

  destroy() {
    this.observer?.disconnect();
    this.plot?.destroy();
    this.plot = null;
  }

  update(points, marks) {
    this.marks = marks;
    this.data = [points.map((it) => it.bytes), points.map((it) => 100 * (1 - it.miss_ratio))];
    this.plot?.setData(this.data);
  }

  redraw() {
    this.plot?.redraw(false, true);
  }

  drawMarks(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    for (const [mark, name, dash] of [
      [this.marks.now, "--muted", [4, 4]], [this.marks.chosen, "--series-2", []],
    ]) {
      if (mark === null) continue;
      const x = Math.round(plot.valToPos(mark, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.strokeStyle = style(name);
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.setLineDash(dash.map((it) => it * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

function powersOfTwo(min, max) {
  const first = Math.ceil(Math.log2(min));
  const last = Math.floor(Math.log2(max));
  const step = Math.max(1, Math.ceil((last - first) / 6));
  const splits = [];
  for (let power = first; power <= last; power += step) splits.push(2 ** power);
  return splits;
}
