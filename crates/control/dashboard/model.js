// The figures over time: the change between two statuses, per volume and in total. For the time
// before the page was opened, the intervals that the daemon has kept.
//
// The counters of the API only grow. An interval is the difference of two statuses. The total is
// the sum of the differences of all volumes, so adding or removing a volume does not falsify it.


const FINE_POINTS = 900;
const COARSE_SECONDS = 15;
const COARSE_POINTS = 1440;
const VOLUMES_TRACKED = 64;

export const ALL = "";

const COUNTERS = [
  "reads", "writes", "read_bytes", "write_bytes", "flushes", "trims", "zeroes", "read_hits",
  "read_partial_hits", "read_misses", "deferred_writes", "backend_reads", "backend_writes",
  "backend_read_bytes", "backend_write_bytes", "saved_ios", "errors",
];
const LATENCIES = [
  "read_hit", "read_miss", "write", "write_memory", "write_disk", "disk_read", "disk_write",
];

// What a volume has counted so far.
function counted(volume) {
  const sums = {};
  for (const name of COUNTERS) sums[name] = volume.counters[name] ?? 0;
  for (const name of LATENCIES) {
    const { count, mean_us } = volume.latency[name];
    sums[`${name}_count`] = count;
    sums[`${name}_us`] = count * mean_us;
  }
  sums.busy = volume.disk.busy_seconds;
  return sums;
}

// The difference; null if the volume was added anew in between.
function difference(now, before) {
  if (now.reads < before.reads || now.writes < before.writes) return null;
  return Object.fromEntries(Object.keys(now).map((name) => [name, now[name] - before[name]]));
}

function addUp(parts) {
  const sum = {};
  for (const part of parts) {
    for (const [name, value] of Object.entries(part)) sum[name] = (sum[name] ?? 0) + value;
  }
  return sum;
}

const ratio = (part, whole, scale = 1) => whole > 0 ? scale * part / whole : null;

// The rates of an interval.
function rates(part, seconds) {
  const mean = (name) => ratio(part[`${name}_us`], part[`${name}_count`]);
  const requests = part.reads + part.writes;
  const readUs = ratio(part.read_hit_us + part.read_miss_us,
    part.read_hit_count + part.read_miss_count);
  return {
    reads: part.reads / seconds,
    writes: part.writes / seconds,
    requests: requests / seconds,
    readBytes: part.read_bytes / seconds,
    writeBytes: part.write_bytes / seconds,
    hit: ratio(part.read_hits + part.deferred_writes, requests, 100),
    readHit: ratio(part.read_hits, part.reads, 100),
    saved: part.saved_ios / seconds,
    clientIos: (requests + part.flushes + part.trims + part.zeroes) / seconds,
    diskReads: part.backend_reads / seconds,
    diskWrites: part.backend_writes / seconds,
    diskReadBytes: part.backend_read_bytes / seconds,
    diskWriteBytes: part.backend_write_bytes / seconds,
    readUs,
    readHitUs: mean("read_hit"),
    readMissUs: mean("read_miss"),
    writeMemoryUs: mean("write_memory"),
    writeDiskUs: mean("write_disk"),
    diskReadUs: mean("disk_read"),
    diskWriteUs: mean("disk_write"),
    busy: Math.min(ratio(part.busy, seconds, 100), 100),
    errors: part.errors,
  };
}

// The rates of an interval that the daemon has kept. `skew` is the browser's clock minus the
// daemon's, in seconds.
function pastRates(point, skew) {
  const requests = point.reads + point.writes;
  const per = (count) => point.seconds > 0 ? count / point.seconds : null;
  const some = (mean) => mean > 0 ? mean : null;
  return {
    time: point.ended_at + skew,
    length: point.seconds,
    reads: per(point.reads),
    writes: per(point.writes),
    requests: per(requests),
    readBytes: per(point.read_bytes),
    writeBytes: per(point.write_bytes),
    hit: ratio(point.read_hits + point.deferred_writes, requests, 100),
    readHit: ratio(point.read_hits, point.reads, 100),
    saved: per(point.saved_ios),
    clientIos: per(requests + point.other_requests),
    diskReads: per(point.backend_reads),
    diskWrites: per(point.backend_writes),
    diskReadBytes: per(point.backend_read_bytes),
    diskWriteBytes: per(point.backend_write_bytes),
    readHitUs: some(point.read_hit_us),
    readMissUs: some(point.read_miss_us),
    writeMemoryUs: some(point.write_memory_us),
    writeDiskUs: some(point.write_disk_us),
    diskReadUs: some(point.disk_read_us),
    diskWriteUs: some(point.disk_write_us),
    busy: Math.min(100 * per(point.disk_busy_seconds), 100),
    errors: point.errors,
    dirty: point.dirty_bytes,
    cached: point.cached_bytes,
  };
}

// The longest span for which the page shows the points that it has recorded, and the longest one
// for which it shows the daemon's intervals of five minutes.
const LIVE_SECONDS = COARSE_SECONDS * COARSE_POINTS;
const DAY_SECONDS = 86400;

// Points of one volume or of all.
class Track {
  constructor() {
    this.fine = [];
    this.coarse = [];
    this.pending = [];
  }

  add(point) {
    this.fine.push(point);
    if (this.fine.length > FINE_POINTS) this.fine.shift();
    this.pending.push(point);
    if (point.time - this.pending[0].time >= COARSE_SECONDS) {
      this.coarse.push(mean(this.pending));
      this.pending = [];
      if (this.coarse.length > COARSE_POINTS) this.coarse.shift();
    }
  }

  points(spanSeconds) {
    const source = spanSeconds <= FINE_POINTS ? this.fine : this.coarse;
    const from = Date.now() / 1000 - spanSeconds;
    return source.filter((point) => point.time >= from);
  }

  last() {
    return this.fine.at(-1) ?? null;
  }
}

function mean(points) {
  const result = {};
  for (const name of Object.keys(points[0])) {
    const values = points.map((point) => point[name]).filter((value) => value !== null);
    result[name] = values.length ? values.reduce((a, b) => a + b) / values.length : null;
  }
  return result;
}

export class Model {
  constructor() {
    this.status = null;
    // The statistics by periods, once they are known.
    this.statistics = null;
    this.tracks = new Map();
    // By volume, the intervals that the daemon has kept.
    this.past = new Map();
    // By volume, the intervals of the last minute: their end, length and sums.
    this.recent = new Map();
    this.before = null;
  }

  // Takes a status that was made at `taken`, in milliseconds on the daemon's clock.
  take(status, taken) {
    const sums = new Map(status.volumes.map((volume) => [volume.name, counted(volume)]));
    const before = this.before;
    const isSame = before && before.pid === status.pid && taken >= before.taken;
    this.status = status;
    if (isSame && taken === before.taken) return;
    this.before = { pid: status.pid, taken, sums };
    // After a long pause, such as while the page was hidden, a mean would mislead.
    const seconds = isSame ? (taken - before.taken) / 1000 : Infinity;
    if (seconds > 30) {
      this.recent.clear();
      return;
    }
    const time = Date.now() / 1000;
    const parts = [];
    for (const volume of status.volumes) {
      const old = before.sums.get(volume.name);
      const part = old && difference(sums.get(volume.name), old);
      if (!part) continue;
      parts.push(part);
      if (this.tracks.has(volume.name) || this.tracks.size <= VOLUMES_TRACKED) {
        this.add(volume.name, part, seconds, time, {
          dirty: volume.dirty_bytes, cached: volume.cached_bytes,
        });
      }
    }
    const { memory } = status;
    this.add(ALL, addUp([counted(NO_VOLUME), ...parts]), seconds, time, {
      dirty: memory.dirty_bytes, cached: memory.used_bytes,
    });
    for (const name of [...this.tracks.keys()]) {
      if (name !== ALL && !sums.has(name)) {
        this.tracks.delete(name);
        this.recent.delete(name);
        this.past.delete(name);
      }
    }
  }

  add(name, part, seconds, time, state) {
    if (!this.tracks.has(name)) this.tracks.set(name, new Track());
    this.tracks.get(name).add({ time, ...rates(part, seconds), ...state });
    const recent = this.recent.get(name) ?? [];
    recent.push({ time, seconds, part });
    this.recent.set(name, recent.filter((it) => it.time > time - 60));
  }

  // The statistics by period, of a volume or of all; null while they are unknown.
  periods(name) {
    if (!this.statistics) return null;
    return name === ALL ? this.statistics.all
      : this.statistics.volumes.find((volume) => volume.name === name) ?? null;
  }

  // Takes the intervals that the daemon has kept of a volume or of all.
  takePast(name, history) {
    const skew = Date.now() / 1000 - history.now;
    const rates = (points) => points.map((point) => pastRates(point, skew));
    // The points of the last hour are asked for once; from then on the page records its own.
    const hour = history.five_seconds?.length ? rates(history.five_seconds)
      : this.past.get(name)?.hour ?? [];
    this.past.set(name, {
      hour, day: rates(history.five_minutes), days: rates(history.hours),
    });
  }

  // The points of the last `spanSeconds`. Those that the page has not recorded are the daemon's.
  points(name, spanSeconds) {
    const live = this.tracks.get(name)?.points(Math.min(spanSeconds, LIVE_SECONDS)) ?? [];
    const past = this.past.get(name);
    const now = Date.now() / 1000;
    const source = (spanSeconds > DAY_SECONDS ? past?.days : past?.day) ?? [];
    if (spanSeconds > LIVE_SECONDS) {
      return source.filter(({ time }) => time >= now - spanSeconds);
    }
    // The finest points that cover a time: the page's, then those of five seconds.
    const until = (points, first) => points.filter(
      ({ time }) => time >= now - spanSeconds && time < first);
    const hour = until(past?.hour ?? [], live[0]?.time ?? now);
    const first = hour[0] ?? live[0];
    const before = until(source, first ? first.time - (first.length ?? 0) : now);
    return [...before, ...hour, ...live];
  }

  // The rates over the last minute, or as much of it as is known.
  minute(name) {
    const recent = this.recent.get(name);
    if (!recent?.length) return null;
    const seconds = recent.reduce((sum, it) => sum + it.seconds, 0);
    return rates(addUp(recent.map((it) => it.part)), seconds);
  }
}

const NO_LATENCY = { count: 0, mean_us: 0 };
const NO_VOLUME = {
  counters: {},
  latency: Object.fromEntries(LATENCIES.map((name) => [name, NO_LATENCY])),
  disk: { busy_seconds: 0 },
};

// The totals since the start, over all volumes or of one.
export function totals(volumes) {
  const sum = addUp([counted(NO_VOLUME), ...volumes.map(counted)]);
  const requests = sum.reads + sum.writes;
  const mean = (name) => ratio(sum[`${name}_us`], sum[`${name}_count`]);
  const clientIos = requests + sum.flushes + sum.trims + sum.zeroes;
  return {
    ...sum, requests, clientIos,
    hit: ratio(sum.read_hits + sum.deferred_writes, requests, 100),
    saved: sum.saved_ios,
    savedPercent: ratio(sum.saved_ios, clientIos, 100),
    readUs: ratio(sum.read_hit_us + sum.read_miss_us, sum.read_hit_count + sum.read_miss_count),
    readHitUs: mean("read_hit"), readMissUs: mean("read_miss"),
    writeMemoryUs: mean("write_memory"), writeDiskUs: mean("write_disk"),
  };
}

// The state of a volume in a word, and its colour.
export function stateOf({ state, frozen }) {
  return state === "serving" && frozen ? "frozen" : state;
}

export function colourOf({ state, frozen }) {
  if (state !== "serving") return "bad";
  return frozen ? "warn" : "good";
}

// The problems, the worst first, in the words of the server.
export function problems(status) {
  return status.alerts.map(({ severity, kind, name, text, remedy, of_site: isOfSite }) => {
    // A volume of another host has no page here.
    const volume = kind === "volume" && !isOfSite ? name : null;
    const what = volume ?? (name ? `${kind} ${name}` : kind);
    const todo = remedy?.replaceAll("`", "");
    return {
      level: severity === "error" ? "bad" : "warn",
      text: `${what}: ${text.replaceAll("`", "")}`,
      volume,
      remedy: todo && `${todo[0].toUpperCase()}${todo.slice(1)}.`,
    };
  });
}
