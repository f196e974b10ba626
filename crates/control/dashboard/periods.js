// The statistics by period. The daemon keeps the total over restarts, but not the other periods.

import { card, rows, table, wide } from "/dom.js";
import { bytes, count, exact, latency, percent, seconds } from "/format.js";

const PERIODS = [
  ["last_5_minutes", "5 minutes"], ["last_hour", "Hour"], ["last_day", "Day"], ["total", "All"],
];

const ratio = (part, whole) => whole > 0 ? 100 * part / whole : null;

// The rows: a name, and a function that returns the value for a period.
const FIGURES = [
  ["From memory", ({ counters: c }) =>
    percent(ratio(c.read_hits + c.deferred_writes, c.reads + c.writes))],
  ["Reads", ({ counters: c }) => count(c.reads)],
  ["Writes", ({ counters: c }) => count(c.writes)],
  ["Read, written", ({ counters: c }) => `${bytes(c.read_bytes)}, ${bytes(c.write_bytes)}`],
  ["I/Os saved", ({ counters: c }) => count(c.saved_ios)],
  ["Read hit, mean", ({ latency: l }) => mean(l.read_hit)],
  ["Read miss, mean", ({ latency: l }) => mean(l.read_miss)],
  ["Read miss, 99 %", ({ latency: l }) => latency(l.read_miss.count ? l.read_miss.p99_us : null)],
  ["Disk read, 99 %", ({ latency: l }) => latency(l.disk_read.count ? l.disk_read.p99_us : null)],
  ["Errors", ({ counters: c }) => exact(c.errors)],
  ["Counted for", (period) => period.seconds ? seconds(period.seconds) : ""],
];

const mean = (summary) => latency(summary.count ? summary.mean_us : null);

export class PeriodTable {
  constructor() {
    this.table = table("What was counted in the last minutes, hours and days",
      ["", ...PERIODS.map(([, label]) => label)]);
    this.node = wide(card("By period; the total is kept over restarts", this.table));
  }

  // Takes the periods of a volume or of all; none before the first answer.
  update(periods) {
    this.node.hidden = !periods;
    if (!periods) return;
    rows(this.table, FIGURES.map(([label, show]) =>
      [label, ...PERIODS.map(([name]) => show(periods[name]))]));
  }
}
