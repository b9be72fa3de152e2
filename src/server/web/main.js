// The console: tabs, theme, key, and which views there are.

import { apiKey, getJson, setApiKey } from "/console/api.js";
import { startChat } from "/console/chat.js";
import { startCompletion } from "/console/completion.js";
import { startDashboard, stopDashboard } from "/console/dashboard.js";
import { byId } from "/console/dom.js";
import { startMicroscope } from "/console/microscope.js";
import { clearError, showError } from "/console/run.js";
import { buildSampling } from "/console/sampling.js";
import { hideTip } from "/console/tokens.js";

const runners = {};
const tabs = () => [...document.querySelectorAll("[role=tab]:not([hidden])")];
const nameOf = (tab) => tab.id.replace("tab-", "");

function select(name, { focus = false } = {}) {
  const chosen = tabs().find((tab) => nameOf(tab) === name) ?? tabs()[0];
  for (const tab of document.querySelectorAll("[role=tab]")) {
    const here = tab === chosen;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    byId(`panel-${nameOf(tab)}`).hidden = !here;
  }
  document.body.dataset.view = nameOf(chosen);
  if (focus) chosen.focus();
  hideTip();
  clearError();
  byId("sampling").elements.temperature.placeholder =
    nameOf(chosen) === "microscope" ? "0" : "default";
  if (nameOf(chosen) === "dashboard" && !document.hidden) startDashboard();
  else stopDashboard();
  history.replaceState(null, "", `#${nameOf(chosen)}`);
}

function startTabs() {
  const list = document.querySelector("[role=tablist]");
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) select(nameOf(tab));
  });
  list.addEventListener("keydown", (event) => {
    const all = tabs(), at = all.indexOf(document.activeElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    select(nameOf(all.at(to % all.length)), { focus: true });
    event.preventDefault();
  });
  addEventListener("hashchange", () => select(location.hash.slice(1)));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) stopDashboard();
    else if (document.body.dataset.view === "dashboard") startDashboard();
  });
}

// "system" follows the system; the other two stay.
const themes = ["system", "light", "dark"];
function startTheme() {
  const button = byId("theme");
  const show = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = localStorage.getItem("octet-theme");
  if (!themes.includes(theme)) theme = "system";
  show(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    localStorage.setItem("octet-theme", theme);
    show(theme);
  });
}

// What is served. Asked again when the key changes.
async function describe() {
  try {
    const models = await getJson("/v1/models");
    byId("model").textContent = models.data[0].id;
    document.title = `${models.data[0].id} – Octet console`;
    clearError();
    const baseline = await getJson("/v1/octet/baseline");
    if (baseline.baseline && !runners.microscope) runners.microscope = startMicroscope(baseline);
  } catch (error) {
    showError(error);
  }
}

function startKey() {
  const key = byId("key");
  key.value = apiKey();
  key.addEventListener("change", () => {
    setApiKey(key.value.trim());
    describe();
  });
}

buildSampling();
startTheme();
startKey();
startTabs();
runners.chat = startChat();
runners.completion = startCompletion();
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  hideTip();
  runners[document.body.dataset.view]?.stop();
});
const wanted = location.hash.slice(1);
select(wanted || "chat");
await describe();
// Its tab comes with what the server tells.
if (wanted === "microscope" && document.body.dataset.view === "chat") select(wanted);
