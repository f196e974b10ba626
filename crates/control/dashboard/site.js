// The view of the site: its hosts, who serves which volume, and what is wrong.

import { card, el, keyed, rows, table, text } from "/dom.js";
import { bytes, count, percent, seconds } from "/format.js";
import { ALL, problems } from "/model.js";
import { showProblems } from "/overview.js";

const HOST_COLUMNS = [
  "Host", "State", "Serves", "Standby", "Clients", "From memory", "Dirty", "In memory", "Version",
];

const sum = (volumes, of) => volumes.reduce((total, volume) => total + of(volume), 0);
const hit = (hits, requests) => percent(requests ? 100 * hits / requests : null);

// The state of a host in a word, and its colour.
function stateOfHost({ answers, problem, status }) {
  if (!answers) return problem ? ["silent", "bad"] : ["not asked yet", "warn"];
  const severities = status.alerts.map(({ severity }) => severity);
  if (severities.includes("error")) return ["failing", "bad"];
  return severities.length ? ["degraded", "warn"] : ["ok", "good"];
}

function hostRow() {
  const cells = HOST_COLUMNS.slice(1).map((label, index) =>
    el("td", { "data-label": label, class: index ? "number" : null }, el("span"), el("small")));
  return el("tr", {}, el("th", { scope: "row" }, el("a"), el("small")), ...cells);
}

function updateHostRow(row, host) {
  const link = row.querySelector("a");
  link.href = host.address;
  text(link, host.name);
  text(row.querySelector("th small"), host.address);
  const [state, colour] = stateOfHost(host);
  const { status } = host;
  const volumes = status?.volumes ?? [];
  const inRole = (role) => String(volumes.filter((volume) => volume.role === role).length);
  const alerts = status?.alerts.length ?? 0;
  const word = alerts === 1 ? "1 problem" : `${alerts} problems`;
  const cells = [
    [state, host.answers ? (alerts ? word : "") : `for ${seconds(host.seconds)}`],
    [inRole("serves"), ""],
    [inRole("standby"), ""],
    [count(status?.connections ?? null), ""],
    [hit(sum(volumes, (it) => it.hits), sum(volumes, (it) => it.requests)), ""],
    [bytes(sum(volumes, (it) => it.dirty_bytes)), ""],
    [bytes(status?.used_bytes ?? null), status ? `of ${bytes(status.limit_bytes)}` : ""],
    [status?.version ?? "", ""],
  ];
  cells.forEach(([first, second], index) => {
    const cell = row.children[index + 1];
    text(cell.children[0], first);
    text(cell.children[1], second);
  });
  row.children[1].children[0].className = `chip ${colour}`;
}

function volumeCells({ volume, hosts, unserved_seconds: unserved }) {
  const isServed = hosts[0]?.role === "serves";
  const others = hosts.slice(isServed ? 1 : 0);
  const state = unserved == null ? volume.state : `not served for ${seconds(unserved)}`;
  return [
    volume.name,
    isServed ? hosts[0].host : "none",
    state,
    isServed ? volume.class : "",
    isServed ? bytes(volume.size_bytes) : "",
    hit(volume.hits, volume.requests),
    bytes(volume.dirty_bytes),
    others.map(({ host, role }) => `${host} (${role.replace("-", " ")})`).join(", "),
  ];
}

export class SiteView {
  constructor() {
    // The past that the page asks for, which this view does not show.
    this.name = ALL;
    this.problems = el("ul", { class: "problems", role: "status" });
    this.hosts = el("table", { class: "volumes" },
      el("caption", { class: "unseen" }, "Hosts of the site"),
      el("thead", {}, el("tr", {}, ...HOST_COLUMNS.map((name, index) =>
        el("th", { scope: "col", class: index > 1 ? "number" : null }, name)))),
      el("tbody"));
    this.volumes = table("Volumes of the site", [
      "Volume", "Host", "State", "Class", "Size", "From memory", "Dirty", "Other hosts",
    ]);
    this.node = el("div", { class: "view" }, el("h1", {}, "Site"), this.problems,
      el("section", { class: "card", "aria-label": "Hosts" }, el("h2", {}, "Hosts"), this.hosts),
      card("Volumes", this.volumes));
  }

  show() {}

  redraw() {}

  destroy() {}

  update({ site }) {
    if (!site) {
      const none = "This server watches no site: its setting site names no hosts.";
      showProblems(this.problems, [{ level: "warn", text: none }], "");
      return;
    }
    const answering = site.hosts.filter((host) => host.answers).length;
    const good = `Working: ${answering} of ${site.hosts.length} hosts answer`;
    showProblems(this.problems, problems(site), good, `${site.volumes.length} volumes`);
    keyed(this.hosts.querySelector("tbody"), site.hosts, (host) => host.address, hostRow,
      updateHostRow);
    rows(this.volumes, site.volumes.map(volumeCells), ([name, host]) => `${name} ${host}`);
  }
}
