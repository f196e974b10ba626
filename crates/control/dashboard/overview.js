// The view of all volumes: problems first, then the most important figures, then the rest.

import { CHARTS, Chart } from "/charts.js";
import { bars, card, el, facts, keyed, rows, table, text, wide } from "/dom.js";
import {
  bytes, bytesPerSecond, count, exact, factor, latency, percent, rate, seconds, when,
} from "/format.js";
import { ServerControls } from "/control.js";
import { ALL, colourOf, problems, stateOf, totals } from "/model.js";
import { PeriodTable } from "/periods.js";

export const SPANS = [
  [120, "2 minutes"], [900, "15 minutes"], [3600, "1 hour"], [21600, "6 hours"],
  [86400, "1 day"], [864000, "10 days"],
];

// How many seconds of the past the charts show, in every view.
export const shown = { span: 900 };

function tile(title) {
  const [value, more] = [el("b"), el("small")];
  return { node: el("div", { class: "tile" }, el("span", {}, title), value, more), value, more };
}

// The most important figures, of one volume or of all.
export class Tiles {
  constructor() {
    this.hit = tile("Served from memory");
    this.requests = tile("Requests");
    this.latency = tile("Read latency");
    this.saved = tile("I/Os saved");
    this.dirty = tile("Dirty data");
    this.memory = tile("Data in memory");
    const all = [this.hit, this.requests, this.latency, this.saved, this.dirty, this.memory];
    this.node = el("section", { class: "tiles", "aria-label": "Main figures" },
      ...all.map((it) => it.node));
  }

  update(minute, sum, dirty, memory) {
    const set = ({ value, more }, first, second) => {
      text(value, first);
      text(more, second);
    };
    set(this.hit, percent(minute?.hit ?? sum.hit),
      minute?.hit == null ? "since the start"
        : `in the last minute; ${percent(sum.hit)} since the start`);
    set(this.requests, rate(minute?.requests ?? null),
      `reads ${rate(minute?.reads ?? null)}, writes ${rate(minute?.writes ?? null)}`);
    const fast = minute?.readHitUs ?? sum.readHitUs;
    const slow = minute?.readMissUs ?? sum.readMissUs;
    const all = minute?.readUs ?? sum.readUs;
    set(this.latency, latency(all), slow === null ? "on average; no read needed the disk"
      : `on average: ${latency(fast)} from memory, ${latency(slow)} with the disk${
        fast ? `, ${factor(slow / fast)} as long` : ""}`);
    set(this.saved, count(sum.saved), `${percent(sum.savedPercent)} of ${
      count(sum.clientIos)} I/Os of clients since the start`);
    set(this.dirty, bytes(dirty.bytes), dirty.more);
    set(this.memory, bytes(memory.bytes), memory.more);
  }
}

// Charts with a choice of the time shown.
export class ChartGrid {
  constructor(name, definitions) {
    this.name = name;
    this.charts = definitions.map((definition) => new Chart(definition));
    this.select = el("select", { onchange: () => this.choose() },
      ...SPANS.map(([span, label]) => el("option", { value: String(span) }, label)));
    this.select.value = String(shown.span);
    this.node = el("section", { "aria-label": "Charts" },
      el("div", { class: "heading" }, el("h2", {}, "Over time"),
        el("label", {}, "Shown: ", this.select)),
      el("div", { class: "grid charts" }, ...this.charts.map((chart) => chart.node)));
  }

  choose() {
    shown.span = Number(this.select.value);
    if (this.model) this.update(this.model);
  }

  show() {
    this.charts.forEach((chart) => chart.show());
  }

  update(model) {
    this.model = model;
    const points = model.points(this.name, shown.span);
    this.charts.forEach((chart) => chart.update(points, shown.span));
  }

  redraw() {
    this.charts.forEach((chart) => chart.redraw());
  }

  destroy() {
    this.charts.forEach((chart) => chart.destroy());
  }
}

export const volumeLink = (name) => `#/volume/${encodeURIComponent(name)}`;

// Shows the problems, which screen readers announce when they change. Without problems, shows the
// sentence `good`, with figures that are not announced.
export function showProblems(holder, found, good, figures = "") {
  const items = found.length ? found : [{ level: "good", text: good }];
  keyed(holder, items, (it) => `${it.level} ${it.text} ${it.remedy ?? ""}`,
    (it) => {
      const words = { bad: "Failure: ", warn: "Attention: ", good: "" };
      const content = it.volume ? el("a", { href: volumeLink(it.volume) }, it.text) : it.text;
      return el("li", { class: it.level }, el("strong", {}, words[it.level]), content,
        it.remedy ? el("small", { class: "remedy" }, it.remedy) : null,
        el("span", { class: "figures", "aria-live": "off" }));
    }, (item, it) => text(item.querySelector(".figures"), it.level === "good" ? figures : ""));
}

const VOLUME_COLUMNS = [
  "Volume", "State", "From memory", "Requests", "Read: memory / disk", "I/Os saved", "Dirty",
  "In memory",
];

function volumeRow() {
  const link = el("a");
  const cells = VOLUME_COLUMNS.slice(1).map((label, index) =>
    el("td", { "data-label": label, class: index ? "number" : null }, el("span"), el("small")));
  return el("tr", {}, el("th", { scope: "row" }, link, el("small")), ...cells);
}

function updateVolumeRow(row, volume, minute) {
  const link = row.querySelector("a");
  link.href = volumeLink(volume.name);
  text(link, volume.name);
  text(row.querySelector("th small"), volume.description ?? volume.backing);
  const sum = totals([volume]);
  const cells = [
    [stateOf(volume), volume.effective_mode],
    [percent(minute?.hit ?? null), `total ${percent(sum.hit)}`],
    [rate(minute?.requests ?? null), `total ${count(sum.requests)}`],
    [`${latency(minute?.readHitUs ?? sum.readHitUs)} / ${
      latency(minute?.readMissUs ?? sum.readMissUs)}`, ""],
    [count(sum.saved), percent(sum.savedPercent)],
    [bytes(volume.dirty_bytes), ""],
    [bytes(volume.cached_bytes), `of ${bytes(volume.size_bytes)}`],
  ];
  cells.forEach(([first, second], index) => {
    const cell = row.children[index + 1];
    text(cell.children[0], first);
    text(cell.children[1], second);
  });
  row.children[1].children[0].className = `chip ${colourOf(volume)}`;
}

export class Overview {
  constructor() {
    this.name = ALL;
    this.problems = el("ul", { class: "problems", role: "status" });
    this.tiles = new Tiles();
    this.grid = new ChartGrid(ALL, CHARTS);
    this.volumes = el("table", { class: "volumes" },
      el("caption", { class: "unseen" }, "Volumes; rates are of the last minute"),
      el("thead", {}, el("tr", {}, ...VOLUME_COLUMNS.map((name, index) =>
        el("th", { scope: "col", class: index > 1 ? "number" : null }, name)))),
      el("tbody"));
    this.memory = el("dl", { class: "facts" });
    this.division = el("div", { class: "bars" });
    this.memoryCard = card("Memory", this.memory, this.division);
    this.power = el("dl", { class: "facts" });
    this.supplies = table("UPSes", ["UPS", "State", "Charge", "Runtime", "Load"]);
    this.powerCard = wide(card("Power failure", this.power, this.supplies));
    this.journals = table("Journals",
      ["Journal", "State", "Used", "Records", "Commit, mean", "Commit, p99"]);
    this.journalCard = wide(card("Journals", this.journals));
    this.server = el("dl", { class: "facts" });
    this.periods = new PeriodTable();
    this.controls = new ServerControls();
    this.node = el("div", { class: "view" }, el("h1", { class: "unseen" }, "Overview"),
      this.problems, this.tiles.node,
      el("section", { class: "card", "aria-label": "Volumes" }, el("h2", {}, "Volumes"),
        this.volumes),
      this.grid.node, this.controls.node,
      el("div", { class: "grid" }, this.periods.node, this.memoryCard, this.powerCard,
        this.journalCard,
        card("Server", this.server)));
  }

  show() {
    this.grid.show();
  }

  redraw() {
    this.grid.redraw();
  }

  destroy() {
    this.grid.destroy();
  }

  update(model) {
    const { status } = model;
    const { memory, volumes } = status;
    const served = volumes.length === 1 ? "1 volume is" : `${volumes.length} volumes are`;
    const clients = status.connections === 1 ? "1 client" : `${status.connections} clients`;
    const sum = totals(volumes);
    const spared = sum.saved > 0
      ? ` · ${percent(sum.savedPercent)} of all I/Os never reached a disk` : "";
    const good = volumes.length ? `Working: ${served} served`
      : "The server runs; no volume is served yet (forebay volume add)";
    showProblems(this.problems, problems(status), good, `${clients} connected${spared}`);
    const share = memory.cache_ratio;
    this.tiles.update(model.minute(ALL), sum, {
      bytes: memory.dirty_bytes,
      more: share ? `at most ${bytes(share.write_bytes)}` : "",
    }, {
      bytes: memory.used_bytes,
      more: `of ${bytes(memory.pool_bytes)}; limit ${bytes(memory.limit_bytes)} with metadata`,
    });
    keyed(this.volumes.querySelector("tbody"), volumes, (volume) => volume.name, volumeRow,
      (row, volume) => updateVolumeRow(row, volume, model.minute(volume.name)));
    this.controls.update(status);
    this.grid.update(model);
    this.periods.update(model.periods(ALL));
    this.updateMemory(status);
    this.updatePower(status);
    this.journalCard.hidden = !status.journals.length;
    rows(this.journals, status.journals.map((it) => [
      it.name, it.state, `${bytes(it.used_bytes)} of ${bytes(it.capacity_bytes)}`,
      count(it.records), latency(it.commit.count ? it.commit.mean_us : null),
      latency(it.commit.count ? it.commit.p99_us : null),
    ]));
    this.updateServer(status);
  }

  updateMemory({ memory, division }) {
    const { sizing, cache_ratio: share } = memory;
    facts(this.memory, [
      ["Setting", sizing?.memory, sizing?.reason],
      ["Limit", bytes(memory.limit_bytes),
        `can be ${bytes(memory.limit_bytes_min)} to ${bytes(memory.limit_bytes_max)}`],
      ["Metadata", bytes(memory.metadata_bytes)],
      ["Reads : writes", share && `${share.read_percent} : ${share.write_percent}`, share?.reason],
      ["Pinned", `${bytes(memory.pinned_bytes)} of ${bytes(memory.pinned_bytes_max)}`],
      ["Free for programs", sizing && bytes(sizing.available_bytes),
        sizing && `${bytes(sizing.reserve_bytes)} are left to the system`],
    ]);
    bars(this.division, (division?.volumes ?? []).map((it) =>
      [it.name, it.part, percent(100 * it.part)]), 1);
  }

  updatePower({ power, vault }) {
    const dump = vault?.last_dump;
    facts(this.power, power || vault ? [
      ["Write-back under UPS", power && (power.write_back_allowed ? "allowed" : "not allowed"),
        power?.reason],
      ["If mains failed now", power && power.forecast],
      ["Dirty under UPS", power && bytes(power.dirty_bytes),
        power && `of ${bytes(power.dirty_bytes_max)} that the battery allows`],
      ["Vault", vault?.state, vault && `${vault.name}, up to ${bytes(vault.capacity_bytes)}`],
      ["Speed of the vault", vault && bytesPerSecond(vault.write_bytes_per_second),
        vault && `measured ${when(vault.measured_at)}`],
      ["Last dump", dump && bytes(dump.bytes), dump && when(dump.begun_at)],
    ] : [["UPS", "none", "no UPS and no vault is configured"]]);
    const supplies = power?.supplies ?? [];
    this.supplies.hidden = !supplies.length;
    rows(this.supplies, supplies.map((it) => [
      it.name, it.verdict, percent(it.charge_percent), seconds(it.runtime_seconds),
      percent(it.load_percent),
    ]));
  }

  updateServer(status) {
    const { background, patrol } = status;
    facts(this.server, [
      ["Version", status.version, `process ${status.pid}, up ${seconds(status.uptime_seconds)}`],
      ["I/O engine", status.io_engine, `${status.workers} workers`],
      ["Listens at", status.listeners.join(", ")],
      ["Background work", `processors ${background.processors}, disks ${background.disks}`,
        background.reason],
      ["Memory protection", patrol.ecc, `${exact(patrol.verified_lines)} lines verified in ${
        count(patrol.walks)} rounds, ${exact(patrol.damage.found_lines)} damaged`],
    ]);
  }
}
