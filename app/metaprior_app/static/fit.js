"use strict";
/* The table, the roles of its columns, the fit, and what it has learned. */
const fitPanel = (() => {
  const ROLES = [["", "not used"], ["task", "names the task"], ["x", "input"], ["y", "output"], ["environment", "environment"],
    ["covariates", "fact about the task"], ["exposure", "exposure of counts"]];
  let table = null, mine = false; // whether this tab has begun the fit, or opened the file

  function showTable(given) {
    table = given;
    byId("roles-details").hidden = !table;
    byId("table-words").textContent = "";
    if (!table) return;
    byId("roles-details").open = true;
    const rows = `${table.n_rows.toLocaleString("en")} rows`;
    const guessed = table.n_guessed < table.n_rows
      ? ` Counts and guesses are those of the first ${table.n_guessed.toLocaleString("en")} rows; a fit uses all.` : "";
    byId("table-words").textContent = `${table.name}: ${rows}, ${table.columns.length} columns.${guessed}`;
    showRows();
    showColumns();
    for (const name of ["sep", "decimal", "encoding"]) byId(name).value = table.format[name] ?? "";
    showTarget();
  }

  function showRows() {
    const head = html("tr", {}, ...table.columns.map((column) => html("th", { scope: "col" }, column.name)));
    const rows = table.rows.map((row) => html("tr", {}, ...row.map((cell) => html("td", {}, cell))));
    const caption = html("caption", {}, `The first ${table.rows.length} of ${table.n_rows.toLocaleString("en")} rows`);
    byId("rows").replaceChildren(caption, html("thead", {}, head), html("tbody", {}, ...rows));
  }

  function showColumns() {
    const { guess } = table;
    const role = (name) => (guess.x.includes(name) ? "x" : ["task", "y", "environment"].find((each) => guess[each] === name) ?? "");
    const rows = table.columns.map((column) => {
      const options = ROLES.map(([value, words]) => html("option", { value }, words));
      const select = html("select", { ariaLabel: `Role of ${column.name}` }, ...options);
      select.dataset.column = column.name;
      select.value = role(column.name);
      select.addEventListener("change", showTarget);
      const missing = column.n_missing ? `, ${column.n_missing} missing` : "";
      const holds = `${column.kind}, ${column.n_distinct.toLocaleString("en")} different${missing}`;
      return html("tr", {}, html("th", { scope: "row" }, column.name), html("td", {}, select), html("td", {}, holds));
    });
    const head = html("tr", {}, ...["column", "role", "holds"].map((name) => html("th", { scope: "col" }, name)));
    byId("columns").replaceChildren(byId("columns").caption, html("thead", {}, head), html("tbody", {}, ...rows));
    const named = { task: guess.task, x: guess.x.join(", "), y: guess.y, environment: guess.environment, target: guess.target };
    const words = { task: "names the task", x: "as input", y: "as output", environment: "as environment", target: "as target" };
    byId("reasons").replaceChildren(...Object.entries(guess.reasons).map(([key, reason]) =>
      html("li", {}, `${named[key]} ${words[key]}: ${reason}`)));
  }

  function chosen() {
    const found = { task: [], x: [], y: [], environment: [], covariates: [], exposure: [] };
    for (const select of byId("columns").querySelectorAll("select")) {
      if (select.value) found[select.value].push(select.dataset.column);
    }
    return found;
  }

  function showTarget() {
    const [name] = chosen().environment, column = table.columns.find((each) => each.name === name);
    showHint();
    byId("target-row").hidden = !name;
    if (!name) return;
    const before = byId("target").value, known = column.levels;
    byId("target").replaceChildren(...known.map((value) => html("option", { value }, value)));
    byId("target").value = known.includes(before) ? before : known.includes(table.guess.target) ? table.guess.target : known[0] ?? "";
  }

  // What the values of the output suggest, of which the Gaussian likelihood knows nothing.
  function showHint() {
    const { y, exposure } = chosen(), hint = table.columns.find((each) => each.name === y[0])?.hint;
    const other = byId("likelihood").value !== "gaussian";
    byId("likelihood-hint").textContent = exposure.length && !other ? "An exposure is for counts: choose “counts” under Options."
      : hint && !other && byId("kind").value !== "classification" ? hint : "";
  }

  // What stands in the way of a fit, in words, or null.
  function problem(roles) {
    const column = table.columns.find((each) => each.name === roles.environment[0]);
    if (!roles.task.length) return "Choose the column that names the task of each row.";
    if (!roles.x.length) return "Choose one input or more: what predictions are made at, such as a time.";
    if (roles.y.length !== 1) return `Choose one output; ${roles.y.length} columns have that role.`;
    if (roles.environment.length > 1) return "Choose one environment at most.";
    if (column && !column.levels.length) return `${column.name} has too many values to be an environment.`;
    if (roles.exposure.length > 1) return "Choose one column of exposures at most.";
    if (roles.exposure.length && byId("likelihood").selectedOptions[0].dataset.exposure !== "True") {
      return "An exposure is for counts: choose “counts” under “Noise of the output”, or another role for the column.";
    }
    const flat = table.columns.find((each) => each.name === roles.y[0]);
    if (flat.n_distinct < 2) return `${flat.name} has one value only: there is nothing to predict.`;
    return null;
  }

  async function fit(event) {
    event.preventDefault();
    const roles = chosen(), wrong = problem(roles);
    if (wrong) return say(wrong);
    const [environment] = roles.environment;
    const request = {
      task: roles.task, x: roles.x, y: roles.y[0], environment: environment ?? null,
      target: environment ? byId("target").value : null, kind: byId("kind").value,
      likelihood: byId("likelihood").value, exposure: roles.exposure[0] ?? null, covariates: roles.covariates,
      drop_missing: byId("drop-missing").checked, drop_duplicates: byId("drop-duplicates").checked,
    };
    const progress = await page.attempt(() => server.post("api/fit", request));
    if (!progress) return;
    mine = true;
    Object.assign(page.state, progress);
    showFit(progress.fit);
    page.watch();
    byId("fit-panel").scrollIntoView({ block: "nearest" });
  }

  function showFit(fit) {
    const isRunning = fit?.status === "running";
    const wasRunning = !byId("fit-panel").hidden;
    byId("fit-panel").hidden = !isRunning;
    byId("fit").disabled = isRunning;
    if (isRunning) return void showPhase(fit);
    if (!wasRunning || !fit) return;
    if (fit.status === "failed") say(fit.error);
    if (fit.status === "stopped") say("The fit was stopped. Nothing was changed.", "note");
    byId("fit-notes").replaceChildren(...fit.notes.map((note) => html("p", { className: "note small" }, note)));
  }

  function showPhase(fit) {
    const { progress } = fit, bar = byId("bar");
    byId("fit-title").textContent = fit.what === "report" ? "Making the report" : "Fitting";
    const seconds = `${fit.seconds.toFixed(0)} s`;
    if (!progress) {
      byId("phase").textContent = `Reading the table. ${seconds}`;
      return bar.removeAttribute("value");
    }
    const share = progress.total ? Math.min(progress.done / progress.total, 1) : 0;
    const steps = progress.total ? `, ${Math.round(progress.done)} of ${Math.round(progress.total)}` : "";
    const detail = progress.detail ? ` (${progress.detail})` : "";
    byId("phase").textContent = `Phase ${progress.number} of ${progress.of}: ${progress.phase}${steps}${detail}. ${seconds}`;
    bar.value = (progress.number - 1 + share) / progress.of;
  }

  function showPrior(prior) {
    byId("transfer-panel").hidden = !prior;
    if (!prior) return;
    byId("words").textContent = prior.words;
    byId("roles-details").open = !prior.fitted_here;
    byId("environments").textContent = `${prior.name}. ${prior.environments.join("; ")}.`;
    byId("fit-notes").replaceChildren(...(page.state.fit?.notes ?? []).map((note) => html("p", { className: "note small" }, note)));
    byId("candidates-figure").hidden = !prior.candidates;
    if (prior.candidates) drawCandidates(prior.candidates);
  }

  function drawCandidates({ rows, label }) {
    const width = Math.min(Math.max(byId("candidates-figure").clientWidth || 720, 340), 900);
    charts.candidates(byId("candidates"), rows, label, width);
  }

  async function open(file) {
    const before = byId("table-words").textContent;
    byId("table-words").textContent = `Reading ${file.name} …`;
    mine = true;
    const state = await page.attempt(() => server.upload("api/table", file));
    if (state) page.show(state);
    else byId("table-words").textContent = before;
  }
  byId("file").addEventListener("change", (event) => {
    if (event.target.files.length) open(event.target.files[0]);
    event.target.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    byId("drop").addEventListener(kind, (event) => {
      event.preventDefault();
      byId("drop").classList.toggle("over", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files.length) open(event.dataTransfer.files[0]);
    });
  }
  for (const button of document.querySelectorAll("[data-example]")) {
    button.addEventListener("click", () => page.attempt(async () =>
      page.show(await server.post("api/example", { name: button.dataset.example }))));
  }
  byId("roles").addEventListener("submit", fit);
  for (const id of ["likelihood", "kind"]) byId(id).addEventListener("change", () => { if (table) showHint(); });
  byId("stop").addEventListener("click", () => page.attempt(async () => {
    const progress = await server.post("api/stop");
    Object.assign(page.state, progress);
    showFit(progress.fit);
  }));
  byId("reread").addEventListener("click", () => page.attempt(async () => page.show(await server.post("api/format",
    { sep: byId("sep").value, decimal: byId("decimal").value, encoding: byId("encoding").value }))));

  // Whether what has just come was asked for in this tab; asked once.
  function isMine() {
    const was = mine;
    mine = false;
    return was;
  }

  return { showTable, showFit, showPrior, isMine };
})();
