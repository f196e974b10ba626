// The page: asks for the status once a second while it is visible, and shows a view of it.

import { Problem, ask, setToken, takeToken, token, tokenIn, volumePath } from "/api.js";
import { el, text } from "/dom.js";
import { seconds } from "/format.js";
import { ALL, Model } from "/model.js";
import { Overview } from "/overview.js";
import { SiteView } from "/site.js";
import { VolumeView } from "/volume.js";

const INTERVAL_MS = 1000;
const RETRY_MS_MAX = 10000;
// How often the statistics are asked for. The daemon updates their periods once a minute.
const STATISTICS_MS = 15000;
// How often the past is asked for. Its intervals of five seconds are asked for once.
const PAST_MS = 60000;

const byId = (id) => document.getElementById(id);
const main = byId("main");
const model = new Model();
const session = { role: null };
let view = null;
let timer = null;
let failures = 0;
// When the last figures came.
let heardAt = null;
let isPolling = false;
let statisticsAt = -Infinity;
let past = { name: null, at: -Infinity };

// Shows the view that the address names.
function route() {
  const found = /^#\/volume\/(.+)$/.exec(location.hash);
  const name = found && decodeURIComponent(found[1]);
  const isSite = location.hash === "#/site";
  view?.destroy();
  if (isSite) view = new SiteView();
  else view = name ? new VolumeView(name) : new Overview();
  main.replaceChildren(view.node);
  const title = isSite ? "Site" : name;
  document.title = title ? `${title} · Forebay` : "Forebay";
  view.show();
  if (model.status) view.update(model);
  scrollTo(0, 0);
}

function showLink(state, words) {
  const chip = byId("link");
  chip.className = `chip ${state}`;
  text(chip, words);
  document.body.classList.toggle("stale", state === "bad");
}

function showRole() {
  const button = byId("role");
  const isOperator = session.role === "operate";
  text(button, isOperator ? "Lock changes" : "Unlock changes");
  button.title = isOperator ? "Forget the token in this tab"
    : "Enter a token, to change settings";
  document.body.classList.toggle("operator", isOperator);
}

async function poll() {
  if (isPolling) return;
  isPolling = true;
  clearTimeout(timer);
  let wait = INTERVAL_MS;
  try {
    const { json, taken, role } = await ask("GET", "/v1/status");
    failures = 0;
    if (session.role !== role) {
      session.role = role;
      showRole();
    }
    model.take(json, taken);
    heardAt = new Date();
    if (performance.now() - statisticsAt > STATISTICS_MS) {
      statisticsAt = performance.now();
      model.statistics = (await ask("GET", "/v1/statistics")).json;
    }
    const { name } = view;
    if (past.name !== name || performance.now() - past.at > PAST_MS) {
      const isKnownPast = model.past.has(name);
      past = { name, at: performance.now() };
      const isKnown = name === ALL || json.volumes.some((volume) => volume.name === name);
      const path = name === ALL ? "/v1/history" : volumePath(name, "history");
      const query = isKnownPast ? "" : "?fine=true";
      if (isKnown) model.takePast(name, (await ask("GET", path + query)).json);
    }
    byId("site").hidden = !json.site;
    if (view instanceof SiteView) model.site = json.site ? (await ask("GET", "/v1/site")).json : null;
    text(byId("server"), `${json.version} · up ${seconds(json.uptime_seconds)}`);
    showLink("good", "live");
    view.update(model);
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    failures += 1;
    wait = Math.min(INTERVAL_MS * 2 ** failures, RETRY_MS_MAX);
    if (error.status === 401 && token()) {
      // The token may be that of a former daemon, and reading may need none.
      setToken(null);
      wait = 0;
    } else if (error.status === 401) {
      session.role = null;
      showRole();
      showLink("bad", "no access");
      if (!byId("dialog").open) askToken(error.sentence);
    } else {
      const last = heardAt ? `; figures of ${heardAt.toLocaleTimeString()}` : "";
      showLink("bad", (error.status ? error.message : "no connection") + last);
    }
  } finally {
    isPolling = false;
    if (!document.hidden) timer = setTimeout(poll, wait);
  }
}

// Asks for a token.
function askToken(reason, needed) {
  const dialog = byId("dialog");
  const input = el("input", {
    type: "password", autocomplete: "off", spellcheck: "false", name: "token",
    "aria-label": "Token",
  });
  const error = el("p", { class: "error", role: "alert" });
  const form = el("form", {
    method: "dialog",
    onsubmit: async (event) => {
      event.preventDefault();
      const before = token();
      // The whole link may be pasted, too.
      setToken(tokenIn(input.value) ?? input.value.trim());
      try {
        const { role } = await ask("GET", "/v1/status");
        session.role = role;
        showRole();
        if (needed && role !== needed) {
          text(error, `This token has the role ${role}. ${reason}`);
          return;
        }
        dialog.close();
        poll();
      } catch (problem) {
        setToken(before);
        text(error, problem.sentence ?? String(problem));
      }
    },
  },
  el("h2", { id: "dialog-title" }, "Enter a token"),
  el("p", {}, reason),
  el("p", { class: "muted" }, "On the daemon's machine, the file dashboard.url in its state ",
    "directory has a link with the token; or take one from its token file. This tab forgets it ",
    "when it is closed."),
  input, error,
  el("div", { class: "buttons" },
    el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
    el("button", { type: "submit", class: "primary" }, "Use it")));
  dialog.replaceChildren(form);
  dialog.showModal();
  input.focus();
}

// Light, dark, or what the system says.
const THEMES = ["auto", "light", "dark"];

function theme(next) {
  const chosen = next ?? localStorage.getItem("forebay-theme") ?? "auto";
  if (next) localStorage.setItem("forebay-theme", next);
  if (chosen === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  const button = byId("theme");
  text(button, `Theme: ${chosen}`);
  button.onclick = () => theme(THEMES[(THEMES.indexOf(chosen) + 1) % THEMES.length]);
  view?.redraw();
}

takeToken();
theme();
showRole();
byId("role").addEventListener("click", () => {
  if (session.role === "operate") {
    setToken(null);
    session.role = null;
    showRole();
    poll();
  } else {
    askToken("Changes need a token with the role operate.", "operate");
  }
});
addEventListener("hashchange", () => {
  const before = location.hash;
  takeToken();
  if (before !== location.hash) {
    // The link with the token was opened in this tab, as the dialog says.
    byId("dialog").close();
    poll();
  }
  route();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  // The fragment of the address names the view, so the link must not change it.
  event.preventDefault();
  main.focus();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => view?.redraw());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) poll();
});
route();
poll();
