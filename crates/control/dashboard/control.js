// Changes of settings. The page asks for confirmation before a change that can cost performance or
// protection. It shows the error messages of the API unchanged.

import { ask, operate, volumePath } from "/api.js";
import { el, text } from "/dom.js";
import { bytes, latency, seconds } from "/format.js";

// Asks for confirmation.
export function confirmed({ title, words, action, isDanger }) {
  const dialog = document.getElementById("dialog");
  return new Promise((resolve) => {
    const end = (answer) => {
      resolve(answer);
      dialog.close();
    };
    const cancel = el("button", { type: "button", onclick: () => end(false) }, "Cancel");
    dialog.replaceChildren(el("form", {
      onsubmit: (event) => {
        event.preventDefault();
        end(true);
      },
    },
    el("h2", { id: "dialog-title" }, title),
    ...words.filter(Boolean).map((sentence) => el("p", {}, sentence)),
    el("div", { class: "buttons" }, cancel,
      el("button", { type: "submit", class: isDanger ? "danger" : "primary" }, action))));
    // Escape closes the dialog, too.
    dialog.addEventListener("close", () => resolve(false), { once: true });
    dialog.showModal();
    cancel.focus();
  });
}

// The result of a change, announced to screen readers.
class Result {
  constructor() {
    this.node = el("p", { class: "result", role: "status" });
  }

  show(kind, words) {
    this.node.className = `result ${kind}`;
    text(this.node, words);
  }

  // Runs `work`, which makes a change and returns the text to show when it succeeded.
  async of(work) {
    this.show("", "Working…");
    try {
      this.show("good", await work());
      return true;
    } catch (problem) {
      this.show("bad", problem.sentence ?? String(problem));
      return false;
    }
  }
}

// An input whose value follows the status until it is edited.
class Field {
  constructor(label, input, hint) {
    this.input = input;
    this.isTouched = false;
    input.addEventListener("input", () => {
      this.isTouched = true;
    });
    this.node = el("label", { class: "field" }, el("span", {}, label), input,
      hint ? el("small", {}, hint) : null);
  }

  update(value) {
    if (!this.isTouched && this.input !== document.activeElement) this.input.value = value;
  }

  get value() {
    return this.input.value.trim();
  }
}

const button = (label, onclick, more = {}) => el("button", { type: "button", onclick, ...more },
  label);

const textInput = (placeholder) =>
  el("input", { type: "text", placeholder, autocomplete: "off", spellcheck: "false" });

function group(title, ...content) {
  return el("fieldset", {}, el("legend", {}, title), ...content);
}

function operatorCard(title, ...groups) {
  return el("section", { class: "card for-operator", "aria-label": title }, el("h2", {}, title),
    el("div", { class: "grid controls" }, ...groups));
}

const MODES = {
  "write-back": "Writes are acknowledged from memory and written to the disk later.",
  "write-through": "Writes are acknowledged from the disk and kept in memory.",
  bypass: "Everything goes to the disk; nothing new is cached.",
};

function modeWarning(volume, mode) {
  const dirty = volume.dirty_bytes ? `${bytes(volume.dirty_bytes)} are written to the disk first.`
    : null;
  if (mode === "write-back") {
    const { protection } = volume;
    return [MODES[mode], `Their protection until then: ${protection}.`, protection === "none"
      ? "A crash or a power failure loses acknowledged writes of this volume." : null];
  }
  if (mode === "bypass") {
    return [MODES[mode], `${bytes(volume.cached_bytes)} leave memory, so reads become as slow as `
      + "the disk, until another mode is chosen and the data has come back.", dirty];
  }
  return [MODES[mode], "Each write then waits for the disk.", dirty];
}

export class VolumeControls {
  constructor(name) {
    this.name = name;
    this.mode = el("select", { "aria-label": "Mode", onchange: () => this.explain() },
      ...Object.keys(MODES).map((mode) => el("option", { value: mode }, mode)));
    this.modeField = new Field("Mode", this.mode);
    this.modeText = el("p", { class: "muted" });
    this.modeResult = new Result();
    this.ranges = textInput("1GiB+256MiB, or all");
    this.pinned = el("p", { class: "muted" });
    this.pinResult = new Result();
    this.switches = new Map([
      ["frozen", "Frozen: serve what is in memory, admit nothing"],
      ["prefetch", "Read ahead of sequential streams"],
      ["warm", "Read valuable data again after a restart"],
      ["learn", "Learn the time of the day"],
    ].map(([key, label]) => [key, { label, input: el("input", {
      type: "checkbox", onchange: () => this.toggle(key),
    }) }]));
    this.switchResult = new Result();
    this.freezeResult = new Result();
    const [frozen, ...loading] = [...this.switches.values()].map(({ label, input }) =>
      el("label", { class: "switch" }, input, label));
    this.workResult = new Result();
    this.node = operatorCard("Change this volume",
      group("Mode", this.modeField.node, this.modeText,
        el("div", { class: "buttons" }, button("Change the mode…", () => this.setMode())),
        this.modeResult.node, frozen, this.freezeResult.node),
      group("Pinned ranges", this.pinned,
        el("label", { class: "field" }, el("span", {}, "Ranges"), this.ranges,
          el("small", {}, "OFFSET+LENGTH, several separated by commas")),
        el("div", { class: "buttons" }, button("Pin", () => this.pin("pin")),
          button("Unpin…", () => this.pin("unpin"))),
        this.pinResult.node),
      group("Into memory", ...loading, this.switchResult.node),
      group("Now", el("div", { class: "buttons left" },
        button("Write dirty data to the disk", () => this.flush()),
        button("Measure the disk…", () => this.calibrate())), this.workResult.node));
  }

  update(volume) {
    this.volume = volume;
    this.modeField.update(volume.mode);
    this.explain();
    const { pins, settings } = volume;
    text(this.pinned, pins.state === "none" ? "Nothing is pinned."
      : `${settings.pin}: ${bytes(pins.loaded_bytes)} of ${bytes(pins.pinned_bytes)} in memory`);
    for (const [key, { input }] of this.switches) {
      if (!input.disabled) input.checked = settings[key] === true;
    }
  }

  explain() {
    text(this.modeText, MODES[this.mode.value]);
  }

  async change(settings) {
    const { json } = await ask("PATCH", volumePath(this.name), settings);
    this.update(json);
    return json;
  }

  async setMode() {
    const mode = this.mode.value;
    if (mode === this.volume.mode) {
      this.modeResult.show("", `The mode is ${mode} already.`);
      return;
    }
    const sure = await confirmed({
      title: `Change ${this.name} to ${mode}?`, words: modeWarning(this.volume, mode),
      action: `Change to ${mode}`,
      isDanger: mode === "bypass" || (mode === "write-back" && this.volume.protection === "none"),
    });
    if (!sure) return;
    await this.modeResult.of(async () => {
      const volume = await this.change({ mode });
      return volume.effective_mode === mode ? `The mode is ${mode} now.`
        : `The mode is set; the volume is still in ${volume.effective_mode}.`;
    });
    this.modeField.isTouched = false;
  }

  async pin(verb) {
    const ranges = this.ranges.value.split(",").map((it) => it.trim()).filter(Boolean);
    if (verb === "unpin" && ranges.length && !await confirmed({
      title: `Unpin ${ranges.join(", ")}?`, action: "Unpin",
      words: ["The data may then leave memory, as other data does."],
    })) return;
    await this.pinResult.of(async () => {
      const { json } = await ask("POST", volumePath(this.name, verb), { ranges });
      this.update(json);
      this.ranges.value = "";
      return verb === "pin" ? "Pinned; what is not in memory yet is read in the background."
        : "Unpinned.";
    });
  }

  async toggle(key) {
    const { label, input } = this.switches.get(key);
    const { checked } = input;
    input.disabled = true;
    const result = key === "frozen" ? this.freezeResult : this.switchResult;
    const isDone = await result.of(async () => {
      await ask("PATCH", volumePath(this.name), { [key]: checked });
      return `${label}: ${checked ? "on" : "off"}.`;
    });
    if (!isDone) input.checked = !checked;
    input.disabled = false;
  }

  async flush() {
    await this.workResult.of(async () => {
      await operate(volumePath(this.name, "flush"), (progress) => this.workResult.show("",
        `${bytes(progress.dirty_bytes_left)} of ${bytes(progress.dirty_bytes_total)} left`));
      return "All data is on the disk.";
    });
  }

  async calibrate() {
    const sure = await confirmed({
      title: "Measure the disk?", action: "Measure",
      words: ["Reads from the disk for up to a second, at a moment without requests."],
    });
    if (!sure) return;
    await this.workResult.of(async () => {
      const { json } = await ask("POST", volumePath(this.name, "calibrate"));
      return `Writes below ${bytes(json.gather.below_bytes)} are worth gathering.`;
    });
  }
}

const WRITES_MOST = 75;

export class ServerControls {
  constructor() {
    this.share = el("input", {
      type: "range", min: String(100 - WRITES_MOST), max: "100", step: "1",
      "aria-label": "Share of the cache for reads, in percent",
      oninput: () => this.explain(),
    });
    this.shareField = new Field("Reads", this.share);
    this.shareText = el("p", { class: "answer" });
    this.shareResult = new Result();
    this.memory = new Map([
      ["memory", ["Memory", "a size such as 2GiB, or auto"]],
      ["memory_min", ["At least", "kept while other programs run short"]],
      ["memory_max", ["At most", "the most that auto takes"]],
      ["memory_reserve", ["Left to the system", ""]],
    ].map(([key, [label, hint]]) => [key, new Field(label, textInput("as it is"), hint)]));
    this.memoryNow = el("p", { class: "muted" });
    this.memoryResult = new Result();
    this.background = el("select", {},
      ...["auto", "full"].map((value) => el("option", { value }, value)));
    this.backgroundField = new Field("Background work", this.background,
      "auto slows it down while other programs wait");
    this.background.addEventListener("change", () => this.setBackground());
    this.workResult = new Result();
    this.report = el("ul");
    this.node = operatorCard("Change the server",
      group("Reads and writes", this.shareField.node, this.shareText,
        el("div", { class: "buttons" }, button("Automatic", () => this.setShare("auto")),
          button("Set the shares…", () => this.setShare(this.ratio))),
        this.shareResult.node),
      group("Memory", this.memoryNow,
        el("div", { class: "fields" }, ...[...this.memory.values()].map((it) => it.node)),
        el("div", { class: "buttons" }, button("Set the memory…", () => this.setMemory())),
        this.memoryResult.node),
      group("Background and power", this.backgroundField.node,
        el("div", { class: "buttons left" },
          button("Rehearse a power failure…", () => this.drill())),
        this.workResult.node, this.report));
  }

  get ratio() {
    return `${this.share.value}:${100 - Number(this.share.value)}`;
  }

  update(status) {
    this.status = status;
    const { memory, background } = status;
    if (memory.cache_ratio) this.shareField.update(String(memory.cache_ratio.read_percent));
    this.explain();
    const [least, most] = [memory.limit_bytes_min, memory.limit_bytes_max].map(bytes);
    text(this.memoryNow, `${memory.sizing?.memory ?? "set"}: ${
      bytes(memory.limit_bytes)} now, can be ${least} to ${most} until the next start`);
    this.backgroundField.update(background.setting);
  }

  explain() {
    const { memory } = this.status;
    const writes = 100 - Number(this.share.value);
    text(this.shareText, `${this.share.value} % for reads, ${writes} % for writes: up to ${
      bytes(memory.pool_bytes * writes / 100)} dirty`);
    this.share.setAttribute("aria-valuetext", `${this.share.value} percent for reads`);
  }

  async setShare(ratio) {
    const { memory } = this.status;
    const wanted = memory.pool_bytes * (100 - Number(this.share.value)) / 100;
    const sure = ratio === "auto" || await confirmed({
      title: `Set reads to writes to ${ratio}?`, action: "Set the shares",
      words: [wanted < memory.cache_ratio?.write_bytes
        ? "Less may be dirty then: writes in bursts wait for the disks sooner."
        : "More may be dirty then: a crash without a journal or UPS loses more, and less is left "
          + "for reads while writes use it.",
      memory.dirty_bytes > wanted
        ? `${bytes(memory.dirty_bytes - wanted)} are written to the disks first.` : null],
    });
    if (!sure) return;
    await this.shareResult.of(async () => {
      const { json } = await ask("PATCH", "/v1/settings", { cache_ratio: ratio });
      this.shareField.isTouched = false;
      const { read_percent: reads, write_percent: writes, reason } = json.cache_ratio;
      return `${reads} : ${writes}. ${reason}`;
    });
  }

  async setMemory() {
    const change = {};
    for (const [key, field] of this.memory) {
      if (field.value) change[key] = field.value;
    }
    const sure = await confirmed({
      title: "Set the memory?", action: "Set the memory",
      words: [Object.entries(change).map(([key, value]) =>
        `${key.replaceAll("_", "-")} = ${value}`).join(", ") || "Nothing is filled in.",
      "When the memory shrinks, the least valuable clean data leaves it, and reads of that data "
        + "need the disks again. Dirty data stays."],
    });
    if (!sure) return;
    await this.memoryResult.of(async () => {
      const { json } = await ask("PATCH", "/v1/settings", change);
      for (const field of this.memory.values()) field.input.value = "";
      return `The limit is ${bytes(json.limit_bytes)}.`;
    });
  }

  async setBackground() {
    const value = this.background.value;
    await this.workResult.of(async () => {
      await ask("PATCH", "/v1/settings", { background: value });
      this.backgroundField.isTouched = false;
      return `Background work: ${value}.`;
    });
  }

  async drill() {
    const sure = await confirmed({
      title: "Rehearse a power failure?", action: "Rehearse",
      words: ["All dirty data under a UPS is written to the vault, read back and compared, and the "
        + "disks are flushed. Clients are served meanwhile, more slowly. The vault is empty "
        + "afterwards."],
    });
    if (!sure) return;
    this.report.replaceChildren();
    await this.workResult.of(async () => {
      const { json: it } = await ask("POST", "/v1/drill");
      const ms = (value) => latency(1000 * value);
      const lines = [
        `${bytes(it.bytes)} saved of ${bytes(it.dirty_bytes)} dirty, in ${ms(it.write_ms)}`,
        `disks flushed after ${ms(it.disks_ms)}, everything verified after ${ms(it.total_ms)}`,
        it.battery_seconds === null ? "battery runtime unknown"
          : `the battery would have lasted ${seconds(it.battery_seconds)}`,
        `report in ${it.path ?? "no file"}`,
      ];
      this.report.replaceChildren(...lines.map((line) => el("li", {}, line)));
      if (!it.saved_in_time) throw new Error(it.verdict);
      return it.verdict;
    });
  }
}
