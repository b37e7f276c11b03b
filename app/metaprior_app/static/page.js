"use strict";
/* The page: requests to the server, the table and the roles of its columns, the fit, and what it has learned. */
const byId = (id) => document.getElementById(id);
const on = (id, event, action) => byId(id).addEventListener(event, action);
const FAST = 250, SLOW = 2000; // milliseconds from one look at the server to the next
const ROLES = [["", "not used"], ["task", "names the task"], ["x", "input"], ["y", "output"], ["environment", "environment"],
  ["covariates", "fact about the task"], ["exposure", "exposure of counts"]];
let state = null, timer = null;

// ---------------------------------------------------------------- requests and elements

async function send(path, body, type = "application/json") {
  const options = body === undefined ? {} : { method: "POST", headers: { "Content-Type": type }, body };
  const response = await fetch(path, options).catch(() => {
    throw Object.assign(new Error("The server does not answer. Has `metaprior app` ended?"), { status: 0 });
  });
  if (response.ok) return response;
  const { error } = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
  throw Object.assign(new Error(error), { status: response.status });
}

const get = async (path) => (await send(path)).json();
const post = async (path, asked = {}) => (await send(path, JSON.stringify(asked))).json();
const upload = async (path, file) =>
  (await send(`${path}?name=${encodeURIComponent(file.name)}`, file, "application/octet-stream")).json();

// Make an HTML element: properties, then children (text or elements).
function html(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made) made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

// Fill a table: the first cell of each row heads it.
function fill(table, names, rows) {
  const head = html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name)));
  const lines = rows.map(([first, ...cells]) =>
    html("tr", {}, html("th", { scope: "row" }, first), ...cells.map((cell) => html("td", {}, cell))));
  table.replaceChildren(table.caption, html("thead", {}, head), html("tbody", {}, ...lines));
}

const options = (pairs) => pairs.map(([value, words]) => html("option", { value }, words));
const noteLines = (notes) => notes.map((note) => html("p", { className: "note small" }, note));

function say(message, kind = "error") {
  const close = html("button", { type: "button", ariaLabel: "Close this message" }, "×");
  const shown = html("div", { className: kind }, html("span", {}, message), close);
  close.addEventListener("click", () => shown.remove());
  byId("messages").replaceChildren(shown);
}

function save(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

// Call `take` with the file that is chosen in a field.
function onFile(id, take) {
  on(id, "change", (event) => {
    if (event.target.files.length) take(event.target.files[0]);
    event.target.value = "";
  });
}

// ---------------------------------------------------------------- what the server has

// Run something that asks the server; show what goes wrong. Whoever is out of date is brought up to date.
async function attempt(action) {
  try {
    byId("messages").replaceChildren();
    return await action();
  } catch (error) {
    say(error.message);
    if (error.status === 409) await refresh().catch(() => {});
    return null;
  }
}

const refresh = async () => show(await get("api/state"));

function show(given) {
  const before = state;
  state = given;
  document.title = state.prior ? `${state.prior.name} – metaprior` : "metaprior";
  if (!before || before.table?.revision !== state.table?.revision) showTable(state.table);
  if (before?.prior?.revision !== state.prior?.revision) {
    showPrior(state.prior);
    newTask.showPrior(state.prior);
    if (before && state.prior) byId("transfer-panel").scrollIntoView();
    if (before?.prior && state.prior) say(`The prior was replaced: this is that of ${state.prior.name}.`, "note");
  }
  byId("export-panel").hidden = !state.prior;
  showProgress({});
}

// Show the part of the state that changes while a fit runs.
function showProgress(progress) {
  Object.assign(state, progress);
  showFit(state.fit);
  newTask.showSlider(state.slider, state.slider_left);
  byId("open-report").hidden = !state.has_report;
  byId("report-row").hidden = !state.prior?.fitted_here;
  byId("make-report").disabled = state.fit?.status === "running";
  clearTimeout(timer); // another tab may change what there is
  timer = setTimeout(look, state.fit?.status === "running" || state.slider_left > 0 ? FAST : SLOW);
}

async function look() {
  try {
    const progress = await get("api/progress");
    if (progress.revision === state.revision) showProgress(progress);
    else await refresh();
  } catch (error) {
    if (error.status === 0) say(error.message);
    timer = setTimeout(look, SLOW);
  }
}

// ---------------------------------------------------------------- the table

function showTable(table) {
  byId("roles-details").hidden = !table;
  byId("roles-details").open = true;
  byId("table-words").textContent = "";
  if (!table) return;
  const { guess, columns } = table, rows = table.n_rows.toLocaleString("en");
  const guessed = table.n_guessed < table.n_rows
    ? ` Counts and guesses are those of the first ${table.n_guessed.toLocaleString("en")} rows; a fit uses all.` : "";
  byId("table-words").textContent = `${table.name}: ${rows} rows, ${columns.length} columns.${guessed}`;
  byId("rows").caption.textContent = `The first ${table.rows.length} of ${rows} rows`;
  fill(byId("rows"), columns.map((column) => column.name), table.rows);
  const role = (name) => (guess.x.includes(name) ? "x" : ["task", "y", "environment"].find((each) => guess[each] === name) ?? "");
  fill(byId("columns"), ["column", "role", "holds"], columns.map(({ name, kind, n_distinct: n, n_missing: missing }) => {
    const select = html("select", { ariaLabel: `Role of ${name}` }, ...options(ROLES));
    select.dataset.column = name;
    select.value = role(name);
    select.addEventListener("change", showTarget);
    return [name, select, `${kind}, ${n.toLocaleString("en")} different${missing ? `, ${missing} missing` : ""}`];
  }));
  const words = Object.fromEntries(ROLES);
  byId("reasons").replaceChildren(...Object.entries(guess.reasons).map(([key, reason]) =>
    html("li", {}, `${[guess[key]].flat().join(", ")}, ${words[key] ?? key}: ${reason}`)));
  for (const name of ["sep", "decimal", "encoding"]) byId(name).value = table.format[name] ?? "";
  showTarget();
}

function chosen() {
  const found = Object.fromEntries(ROLES.map(([role]) => [role, []]));
  for (const select of byId("columns").querySelectorAll("select")) found[select.value].push(select.dataset.column);
  return found;
}

function showTarget() {
  showHint();
  const [name] = chosen().environment, before = byId("target").value;
  byId("target-row").hidden = !name;
  const { levels } = state.table.columns.find((each) => each.name === name) ?? { levels: [] };
  byId("target").replaceChildren(...options(levels.map((value) => [value, value])));
  byId("target").value = [before, state.table.guess.target, levels[0]].find((value) => levels.includes(value)) ?? "";
}

// What the values of the output suggest, of which the Gaussian likelihood knows nothing.
function showHint() {
  const { y } = chosen(), other = byId("likelihood").value !== "gaussian" || byId("kind").value === "classification";
  byId("likelihood-hint").textContent = other ? "" : state.table.columns.find((each) => each.name === y[0])?.hint ?? "";
}

// What stands in the way of a fit, in words, or null.
function problem(roles) {
  if (!roles.task.length) return "Choose the column that names the task of each row.";
  if (!roles.x.length) return "Choose one input or more: what predictions are made at, such as a time.";
  if (roles.y.length !== 1) return `Choose one output; ${roles.y.length} columns have that role.`;
  if (roles.environment.length > 1 || roles.exposure.length > 1) return "Choose one environment and one exposure at most.";
  if (roles.environment.length && !byId("target").value) return `${roles.environment} has too many values to be an environment.`;
  if (roles.exposure.length && byId("likelihood").selectedOptions[0].dataset.exposure !== "True") {
    return "An exposure is for counts: choose a likelihood of counts under Options, or another role for the column.";
  }
  return null;
}

async function fit(event) {
  event.preventDefault();
  const roles = chosen(), wrong = problem(roles);
  if (wrong) return say(wrong);
  const [environment = null] = roles.environment, [exposure = null] = roles.exposure;
  const progress = await attempt(() => post("api/fit", {
    task: roles.task, x: roles.x, y: roles.y[0], environment, exposure, covariates: roles.covariates,
    target: environment && byId("target").value, kind: byId("kind").value, likelihood: byId("likelihood").value,
    drop_missing: byId("drop-missing").checked, drop_duplicates: byId("drop-duplicates").checked,
  }));
  if (!progress) return;
  showProgress(progress);
  byId("fit-panel").scrollIntoView({ block: "nearest" });
}

// ---------------------------------------------------------------- the fit

function showFit(given) {
  const isRunning = given?.status === "running", wasRunning = !byId("fit-panel").hidden;
  byId("fit-panel").hidden = !isRunning;
  byId("fit").disabled = isRunning;
  if (isRunning) return showPhase(given);
  if (!wasRunning || !given) return;
  if (given.status === "failed") say(given.error);
  if (given.status === "stopped") say("The fit was stopped. Nothing was changed.", "note");
  byId("fit-notes").replaceChildren(...noteLines(given.notes));
}

function showPhase({ what, progress, seconds }) {
  byId("fit-title").textContent = what === "report" ? "Making the report" : "Fitting";
  const { phase, number, of, total, done, detail } = progress ?? {};
  const steps = total ? `, ${Math.round(done)} of ${Math.round(total)}` : "";
  const words = progress ? `Phase ${number} of ${of}: ${phase}${steps}${detail ? ` (${detail})` : ""}` : "Reading the table";
  byId("phase").textContent = `${words}. ${seconds.toFixed(0)} s`;
  if (progress) byId("bar").value = (number - 1 + (total ? Math.min(done / total, 1) : 0)) / of;
  else byId("bar").removeAttribute("value");
}

function showPrior(prior) {
  byId("transfer-panel").hidden = !prior;
  if (!prior) return;
  byId("words").textContent = prior.words;
  byId("roles-details").open = !prior.fitted_here;
  byId("environments").textContent = `${prior.name}. ${prior.environments.join("; ")}.`;
  byId("fit-notes").replaceChildren(...noteLines(state.fit?.notes ?? []));
  byId("candidates-figure").hidden = !prior.candidates;
  const width = Math.min(Math.max(byId("candidates-figure").clientWidth || 720, 340), 900);
  if (prior.candidates) charts.candidates(byId("candidates"), prior.candidates.rows, prior.candidates.label, width);
}

async function open(file) {
  const words = byId("table-words"), before = words.textContent;
  words.textContent = `Reading ${file.name} …`;
  const given = await attempt(() => upload("api/table", file));
  if (given) show(given);
  else words.textContent = before;
}

onFile("file", open);
for (const kind of ["dragover", "dragleave", "drop"]) {
  window.addEventListener(kind, (event) => event.preventDefault()); // a file beside the field must not replace the page
  on("drop", kind, (event) => {
    byId("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
  });
}
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", () => attempt(async () => show(await post("api/example", { name: button.dataset.example }))));
}
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}
on("roles", "submit", fit);
for (const id of ["likelihood", "kind"]) on(id, "change", () => state.table && showHint());
on("stop", "click", () => attempt(async () => showProgress(await post("api/stop"))));
on("make-report", "click", () => attempt(async () =>
  showProgress(await post("api/report", { without_data: byId("without-data").checked }))));
on("reread", "click", () => attempt(async () => show(await post("api/format",
  { sep: byId("sep").value, decimal: byId("decimal").value, encoding: byId("encoding").value }))));
window.addEventListener("DOMContentLoaded", () => attempt(refresh));
