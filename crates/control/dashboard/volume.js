// The view of one volume.

import { CHARTS, Curve, MORE_CHARTS } from "/charts.js";
import { VolumeControls } from "/control.js";
import { bars, card, el, facts, rows, table, text, wide } from "/dom.js";
import { bytes, count, exact, latency, percent, seconds } from "/format.js";
import { colourOf, problems, stateOf, totals } from "/model.js";
import { ChartGrid, Tiles, showProblems } from "/overview.js";
import { PeriodTable } from "/periods.js";

const LATENCIES = [
  ["read_hit", "Read from memory"], ["read_miss", "Read from the disk"],
  ["write_memory", "Write to memory"], ["write_disk", "Write to the disk"], ["flush", "Flush"],
  ["trim", "Trim, zeroes"], ["disk_read", "Disk: read"], ["disk_write", "Disk: write"],
  ["disk_flush", "Disk: flush"], ["disk_erase", "Disk: discard"],
];

const words = (name) => name.replaceAll(/[-_]/g, " ");

function barList(title, none) {
  const list = el("div", { class: "bars" });
  const empty = el("p", { class: "muted" }, none);
  return { node: el("section", { "aria-label": title }, el("h3", {}, title), list, empty), list,
    empty };
}

function updateBars({ list, empty }, items) {
  empty.hidden = items.length > 0;
  bars(list, items);
}

// The hit rate by the size of the pool, with the answer to "what if the volume had this much memory".
class WhatIf {
  constructor() {
    this.curve = new Curve("Hit rate over the size of the memory");
    this.slider = el("input", {
      type: "range", min: "0", max: "1000", value: "500", step: "1",
      "aria-label": "Memory for this volume", oninput: () => this.choose(true),
    });
    this.answer = el("p", { class: "answer", role: "status" });
    this.advice = el("p");
    this.none = el("p", { class: "muted" },
      "Not known yet: this needs some thousand accesses.");
    this.body = el("div", {}, this.curve.holder,
      el("label", { class: "slider" }, "What if this volume had", this.slider), this.answer,
      this.advice);
    this.node = card("More or less memory?", this.none, this.body);
    this.isChosen = false;
    this.points = [];
  }

  show() {
    this.curve.show();
  }

  // The hit rate at a size, interpolated on a logarithmic scale of sizes.
  hitAt(size) {
    const after = this.points.findIndex((point) => point.bytes >= size);
    if (after === 0) return 1 - this.points[0].miss_ratio;
    if (after < 0) return 1 - this.points.at(-1).miss_ratio;
    const [low, high] = [this.points[after - 1], this.points[after]];
    const part = Math.log(size / low.bytes) / Math.log(high.bytes / low.bytes);
    return 1 - (low.miss_ratio + part * (high.miss_ratio - low.miss_ratio));
  }

  get size() {
    const [low, high] = [this.points[0].bytes, this.points.at(-1).bytes];
    return low * (high / low) ** (Number(this.slider.value) / 1000);
  }

  update({ points, outlook }) {
    const isKnown = points.length > 1;
    this.none.hidden = isKnown;
    this.body.hidden = !isKnown;
    if (!isKnown) return;
    this.points = points;
    this.outlook = outlook;
    if (!this.isChosen && outlook) {
      const [low, high] = [points[0].bytes, points.at(-1).bytes];
      const place = Math.log(2 * outlook.share_bytes / low) / Math.log(high / low);
      this.slider.value = String(Math.round(1000 * Math.min(Math.max(place, 0), 1)));
    }
    text(this.advice, outlook ? `Advice: ${outlook.advice}. ${outlook.reason}` : "");
    this.choose(false);
  }

  choose(byHand) {
    this.isChosen ||= byHand;
    const { outlook, size } = this;
    const hit = 100 * this.hitAt(size);
    const now = outlook ? 100 * (1 - outlook.miss_ratio_now) : null;
    const change = now === null ? null : hit - now;
    const compared = change === null ? "" : Math.abs(change) < 0.05 ? ", the same as now"
      : `, ${Math.abs(change).toFixed(1)} points ${change > 0 ? "more" : "less"} than now, with ${
        bytes(outlook.share_bytes)}`;
    text(this.answer, `${bytes(size)}: about ${percent(hit)} of accesses from memory${compared}.`);
    this.slider.setAttribute("aria-valuetext", bytes(size));
    this.curve.update(this.points, { now: outlook?.share_bytes ?? null, chosen: size });
  }
}

export class VolumeView {
  constructor(name) {
    this.name = name;
    this.title = el("h1", {}, name);
    this.state = el("span", { class: "chip" });
    this.what = el("p", { class: "muted" });
    this.problems = el("ul", { class: "problems", role: "status" });
    this.tiles = new Tiles();
    this.grid = new ChartGrid(name, [...CHARTS, ...MORE_CHARTS]);
    this.whatIf = new WhatIf();
    this.latencies = table("Latencies since the volume was added",
      ["", "Requests", "Mean", "Median", "99 %", "99.9 %", "Longest"]);
    this.uncachedReads = barList("Reads that needed the disk", "Every read came from memory.");
    this.uncachedWrites = barList("Writes that waited for the disk",
      "Every write was acknowledged from memory.");
    this.readSizes = barList("Reads", "No read yet.");
    this.writeSizes = barList("Writes", "No write yet.");
    this.causes = table("I/Os of the disk by cause",
      ["Cause", "Reads", "Read", "Writes", "Written"]);
    this.periods = new PeriodTable();
    this.facts = el("dl", { class: "facts" });
    this.counts = el("dl", { class: "facts" });
    this.settings = el("dl", { class: "facts" });
    this.controls = new VolumeControls(name);
    this.gone = el("p", { class: "card", hidden: true }, "There is no such volume (any more).");
    this.body = el("div", { class: "view" }, this.problems, this.tiles.node, this.grid.node,
      this.controls.node,
      el("div", { class: "grid" }, this.whatIf.node,
        wide(card("Latency", this.latencies)),
        card("Not from memory: why", this.uncachedReads.node, this.uncachedWrites.node),
        card("Sizes of requests", this.readSizes.node, this.writeSizes.node),
        card("I/Os of the disk", this.causes), this.periods.node, card("State", this.facts),
        card("Counted since it was added", this.counts), card("Settings", this.settings)));
    this.node = el("div", { class: "view" },
      el("p", {}, el("a", { href: "#/" }, "← All volumes")),
      el("div", { class: "heading" }, this.title, this.state), this.what, this.gone, this.body);
  }

  show() {
    this.grid.show();
    this.whatIf.show();
  }

  redraw() {
    this.grid.redraw();
    this.whatIf.curve.redraw();
  }

  destroy() {
    this.grid.destroy();
    this.whatIf.curve.destroy();
  }

  update(model) {
    const volume = model.status.volumes.find((it) => it.name === this.name);
    this.gone.hidden = Boolean(volume);
    this.body.hidden = !volume;
    if (!volume) return;
    text(this.state, stateOf(volume));
    this.state.className = `chip ${colourOf(volume)}`;
    text(this.what, [volume.description, `${bytes(volume.size_bytes)} at ${volume.backing}`,
      volume.effective_mode, `protection ${volume.protection}`].filter(Boolean).join(" · "));
    const found = problems(model.status).filter((it) => it.volume === this.name);
    showProblems(this.problems, found, "This volume is served without errors");
    this.tiles.update(model.minute(this.name), totals([volume]),
      { bytes: volume.dirty_bytes, more: "not on the disk yet" },
      { bytes: volume.cached_bytes, more: `of ${bytes(volume.size_bytes)} on the disk` });
    this.controls.update(volume);
    this.grid.update(model);
    this.whatIf.update(volume.curve);
    this.periods.update(model.periods(this.name));
    this.updateTables(volume);
    this.updateFacts(volume);
  }

  updateTables({ latency: latencies, counters }) {
    rows(this.latencies, LATENCIES.map(([name, label]) => [label, latencies[name]])
      .filter(([, it]) => it.count > 0)
      .map(([label, it]) => [label, count(it.count),
        ...[it.mean_us, it.p50_us, it.p99_us, it.p999_us, it.max_us].map(latency)]));
    const reasons = (map) => Object.entries(map).filter(([, value]) => value > 0)
      .sort((a, b) => b[1] - a[1])
      .map(([name, value]) => [words(name), value, exact(value)]);
    updateBars(this.uncachedReads, reasons(counters.uncached_reads));
    updateBars(this.uncachedWrites, reasons(counters.uncached_writes));
    const sizes = (list) => list.map((it) =>
      [`up to ${bytes(it.up_to_bytes)}`, it.requests, exact(it.requests)]);
    updateBars(this.readSizes, sizes(counters.pattern.read_sizes));
    updateBars(this.writeSizes, sizes(counters.pattern.write_sizes));
    rows(this.causes, Object.entries(counters.backend_causes)
      .filter(([, it]) => it.reads + it.writes > 0)
      .map(([name, it]) => [words(name), exact(it.reads), bytes(it.read_bytes), exact(it.writes),
        bytes(it.write_bytes)]));
  }

  updateFacts(volume) {
    const { counters: c, pins, warm_up: warm, learn, geometry, write_back: back, disk } = volume;
    facts(this.facts, [
      ["Mode", volume.effective_mode, volume.effective_mode_reason],
      ["Admission", volume.frozen ? "frozen" : "on",
        volume.frozen ? "only pinned ranges and dirty data come into memory" : null],
      ["Protection", volume.protection, volume.journal && `journal ${volume.journal}`],
      ["Pinned", pins.state === "none" ? "nothing"
        : `${bytes(pins.loaded_bytes)} of ${bytes(pins.pinned_bytes)}, ${pins.state}`,
        pins.state_reason],
      ["Warm-up", warm.state, warm.planned_bytes
        ? `${bytes(warm.done_bytes)} of ${bytes(warm.planned_bytes)}` : null],
      ["Time of the day", learn.enabled ? learn.state : "off", learn.slot && `now ${learn.slot}`],
      ["Disk", geometry.rotational === null ? "not known"
        : geometry.rotational ? "rotational" : "non-rotational",
        geometry.stripe_bytes ? `stripes of ${bytes(geometry.stripe_bytes)}` : null],
      ["Disk in flight", exact(disk.in_flight), `busy for ${seconds(disk.busy_seconds)}`],
      ["Writeback", `${exact(back.writes)} writes, ${bytes(back.bytes)}`,
        `${exact(back.urgent)} urgent; data was dirty for ${
          latency(1000 * back.mean_dirty_ms)} on average${back.dirty_for_ms >= 1000
          ? `, now ${seconds(back.dirty_for_ms / 1000)} at most` : ""}`],
      ["Encryption", volume.tls],
    ]);
    facts(this.counts, [
      ["Reads", exact(c.reads), `${bytes(c.read_bytes)}; ${exact(c.read_hits)} hits, ${
        exact(c.read_partial_hits)} partial hits, ${exact(c.read_misses)} misses`],
      ["Writes", exact(c.writes), `${bytes(c.write_bytes)}; ${
        exact(c.deferred_writes)} from memory`],
      ["Flushes", exact(c.flushes)],
      ["Trims, zeroes", `${exact(c.trims)}, ${exact(c.zeroes)}`],
      ["Errors", exact(c.errors), `${exact(c.refused)} of them refused at once`],
      ["Disk reads", exact(c.backend_reads), bytes(c.backend_read_bytes)],
      ["Disk writes", exact(c.backend_writes), bytes(c.backend_write_bytes)],
      ["Disk flushes", exact(c.backend_flushes)],
      ["Read ahead", bytes(c.prefetched_bytes), `${bytes(c.prefetch_used_bytes)} used`],
      ["Preloaded", bytes(c.preloaded_bytes), `${bytes(c.preload_used_bytes)} used`],
      ["Admitted to memory", bytes(c.admitted_bytes), `${bytes(c.evicted_bytes)} evicted`],
      ["Sequential", `${exact(c.pattern.sequential_reads)} reads, ${
        exact(c.pattern.sequential_writes)} writes`],
      ["Unaligned to 4 KiB", exact(c.pattern.unaligned)],
    ]);
    facts(this.settings, Object.entries(volume.settings).map(([name, value]) =>
      [name.replaceAll("_", "-"), value === true ? "yes" : value === false ? "no" : value]));
  }
}
