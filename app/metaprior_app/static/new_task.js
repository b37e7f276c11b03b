"use strict";
/* A new task: readings that are clicked into a chart or typed, and what the prior predicts from them. */
const newTask = (() => {
  const NEAR = 16, MAX_UNDO = 200; // pixels to a reading that is meant; steps
  const MAX_FIXED = 40; // inputs with a field of their own; others keep their typical value
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const { chart, second } = taskChart;
  let prior = null, task = null, past = [], tasks = null, shown = null, drawn = { frames: [], places: [] };
  let isAsking = false, asksAgain = false, dragged = null, isMoved = false, focused = null, domain = null;

  const view = () => ({ prior, task, shown, tasks, domain });
  const isMap = () => task.view === "map";
  const range = (i) => taskChart.range(prior, i);
  // Readings outlive a reload, and a fit to the same columns.
  const key = () => `${location.pathname}${JSON.stringify([prior.inputs.map((each) => [each.name, each.levels]), prior.output, prior.classes, prior.whole])}`;

  function showPrior(given) {
    prior = given;
    byId("task-panel").hidden = !prior;
    if (!prior) return;
    [past, tasks, shown, focused] = [[], null, null, null];
    task = JSON.parse(sessionStorage.getItem(key())) ?? {
      readings: [], axis: prior.axes[0], second: prior.axes[1] ?? prior.axes[0], view: prior.axes.length === 2 ? "map" : "line",
      fixed: prior.inputs.map((each) => each.typical), classes: prior.classes ?? ["A", "B"], label: 0, alpha: "auto",
    };
    task.alpha = "auto";
    byId("save-prior").href = "prior.safetensors";
    byId("slider-row").hidden = true;
    byId("pick-row").hidden = true;
    showViews();
    showClasses();
    loadTasks();
    changed();
  }

  // ---------------------------------------------------------------- requests

  function request() {
    const { axis, fixed, readings, alpha, label } = task;
    return {
      revision: prior.revision, readings, coverage: Number(byId("coverage").value) / 100, axis, fixed, alpha,
      range: range(axis), samples: byId("show-samples").checked && !prior.labels, map: isMap(),
      second: task.second, second_range: range(task.second), class: label, classes: prior.classes ? null : task.classes,
    };
  }

  // Ask for predictions: one request at a time, then the latest state.
  async function ask() {
    if (isAsking) return void (asksAgain = true);
    isAsking = true;
    do {
      asksAgain = false;
      const asked = prior;
      try {
        const answer = await server.post("api/predict", request());
        if (asked === prior) shown = answer;
      } catch (error) {
        say(error.message);
        if (error.status === 409) page.refresh().catch(() => {});
      }
    } while (asksAgain);
    isAsking = false;
    draw();
    const notes = (shown?.notes ?? []).map((note) => html("p", { className: "note small" }, note));
    byId("task-notes").replaceChildren(...notes);
    if (byId("code-details").open) showCode();
    chart.dataset.answered = String(Number(chart.dataset.answered ?? 0) + 1);
  }

  async function loadTasks() {
    const asked = prior;
    tasks = null;
    if (!prior.n_tasks || prior.labels) return;
    const exposure = task.fixed[prior.inputs.findIndex((each) => each.exposure)] ?? null;
    const answer = await page.attempt(() => server.post("api/tasks", { revision: prior.revision, axis: task.axis, exposure }));
    if (asked !== prior || !answer) return;
    tasks = answer.tasks;
    draw();
  }

  async function showCode() {
    const code = await server.post("api/code", request()).catch(() => null);
    if (!code) return;
    byId("python").textContent = code.python;
    byId("command").textContent = code.command;
  }

  // ---------------------------------------------------------------- changes

  function remember() {
    past.push(JSON.stringify({ readings: task.readings, classes: task.classes }));
    past.splice(0, past.length - MAX_UNDO);
  }

  function change(how, withTable = true) {
    remember();
    how();
    changed(withTable);
  }

  // A table that is typed into is not shown again: its field would lose the focus.
  function changed(withTable = true) {
    sessionStorage.setItem(key(), JSON.stringify(task));
    byId("undo").disabled = !past.length;
    byId("clear").disabled = !task.readings.length;
    if (withTable) showReadings();
    draw();
    ask();
  }

  const showReadings = () => taskTable.show(view(), { change, remove, refuse: showReadings });

  function undo() {
    if (!past.length) return;
    Object.assign(task, JSON.parse(past.pop()));
    focused = null;
    showClasses();
    changed();
  }

  function remove(i) {
    change(() => task.readings.splice(i, 1));
    focused = task.readings.length ? Math.min(i, task.readings.length - 1) : null;
    draw();
  }

  // A value with as many digits as a place in a chart can be told by.
  function round(value, [low, high]) {
    const step = 10 ** Math.floor(Math.log10((high - low) / 200));
    return Number((Math.round(value / step) * step).toPrecision(12));
  }

  function place(reading, x, y) {
    reading.x[task.axis] = round(x, range(task.axis));
    if (isMap()) reading.x[task.second] = round(y, range(task.second));
    else if (!prior.labels) reading.y = taskTable.possible(prior, round(y, domain) * taskChart.share(prior, task, reading));
    return reading;
  }

  // The output of a reading that is clicked into a map: what is predicted there, to be corrected in the table.
  function predicted(x, y) {
    if (prior.labels) return task.label;
    if (!isMap()) return y;
    if (!shown?.mean) return taskTable.possible(prior, (prior.y_range[0] + prior.y_range[1]) / 2);
    const cell = (value, [low, high], n) => Math.min(Math.max(Math.floor(((value - low) / (high - low)) * n), 0), n - 1);
    const { mean } = shown;
    return taskTable.possible(prior, round(mean[cell(y, shown.y, mean.length)][cell(x, shown.x, mean[0].length)], prior.y_range));
  }

  function add(x, y) {
    remember();
    task.readings.push(place({ x: [...task.fixed], y: predicted(x, y) }, x, y));
    focused = task.readings.length - 1;
    return focused;
  }

  function addInTheMiddle() {
    const middle = ([low, high]) => (low + high) / 2, x = middle(range(task.axis));
    let y = isMap() ? middle(range(task.second)) : middle(domain);
    if (shown?.kind === "curve") y = shown.mean[shown.x.findIndex((each) => each >= x)] ?? y;
    add(x, y);
    changed();
  }

  // ---------------------------------------------------------------- the chart

  function draw() {
    if (!prior || byId("task-panel").hidden) return;
    if (dragged === null) domain = taskChart.yDomain(view()); // a scale that moves under the pointer would be confusing
    drawn = taskChart.draw(view());
    for (const { i, k, dot } of drawn.places) {
      dot.addEventListener("keydown", (event) => onKey(event, i));
      dot.addEventListener("focus", () => { focused = i; });
      dot.addEventListener("blur", (event) => { if (event.relatedTarget) focused = null; });
      if (k === 0 && i === focused) dot.focus({ preventScroll: true });
    }
  }

  function position(event, f) {
    const box = f.svg.getBoundingClientRect(), width = Number(f.svg.getAttribute("viewBox").split(" ")[2]);
    return [(event.clientX - box.left) * (width / box.width), (event.clientY - box.top) * (width / box.width)];
  }

  function onDown(event, k) {
    const f = drawn.frames[k];
    if (!f || event.button !== 0) return;
    const [px, py] = position(event, f), { box } = f, distance = (each) => Math.hypot(each.x - px, each.y - py);
    const near = drawn.places.filter((each) => each.k === k && distance(each) < NEAR)
      .sort((a, b) => distance(a) - distance(b))[0];
    const isInside = px >= box.x && px <= box.x + box.width && py >= box.y && py <= box.y + box.height;
    if (!near && !isInside) return;
    event.preventDefault();
    f.svg.setPointerCapture(event.pointerId);
    isMoved = !near;
    dragged = focused = near ? near.i : add(f.ix(px), f.iy(py));
    if (near) draw();
    else changed();
  }

  function onMove(event, k) {
    if (dragged === null) return;
    if (!isMoved) remember();
    isMoved = true;
    const f = drawn.frames[k], [px, py] = position(event, f), { box } = f;
    const inside = (value, low, span) => Math.min(Math.max(value, low), low + span);
    place(task.readings[dragged], f.ix(inside(px, box.x, box.width)), f.iy(inside(py, box.y, box.height)));
    draw();
    ask();
  }

  function onUp() {
    if (dragged === null) return;
    dragged = null;
    if (isMoved) changed();
  }

  function onKey(event, i) {
    if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      return remove(i);
    }
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    const step = event.shiftKey ? 0.05 : 0.01, reading = task.readings[i], [low, high] = range(task.axis);
    const [bottom, top] = isMap() ? range(task.second) : domain;
    const share = taskChart.share(prior, task, reading), y = isMap() ? reading.x[task.second] : reading.y / share;
    const least = prior.whole && !isMap() ? 1 / share : 0; // of a step along y: whole numbers would stay where they are
    const up = move[1] * Math.max(step * (top - bottom), least);
    change(() => place(reading, reading.x[task.axis] + move[0] * step * (high - low), y + up));
  }

  // ---------------------------------------------------------------- controls

  function showClasses() {
    byId("classes").hidden = !prior.labels;
    if (!prior.labels) return;
    const choices = task.classes.map((name, i) => {
      const radio = html("input", { type: "radio", name: "label", checked: i === task.label });
      radio.addEventListener("change", () => {
        task.label = i;
        changed();
      });
      return html("label", {}, radio, " ", html("span", { className: `legend ${charts.classOf(i)}` }), ` ${name}`);
    });
    const more = html("button", { type: "button" }, "One class more");
    more.addEventListener("click", () => {
      change(() => task.classes.push(String.fromCharCode(65 + task.classes.length)));
      showClasses();
    });
    byId("classes").replaceChildren(...choices, ...(prior.classes || task.classes.length > 5 ? [] : [more]));
  }

  function showHelp() {
    const what = prior.labels ? "Choose a label, click readings" : "Click readings";
    const corrected = isMap() && !prior.labels
      ? ` A new reading gets the ${prior.output} that is predicted there: correct it in the table.` : "";
    const without = prior.n_tasks ? "" : " The file of a prior does not hold its training tasks, so none are drawn.";
    byId("task-help").textContent = `${what} into the chart, drag them, or use the table below.${corrected}${without}`;
  }

  // Which inputs the chart shows, from where to where, and what the others are.
  function showViews() {
    showHelp();
    const parts = [], names = prior.inputs.map((each, i) => [i, each.name]), axes = names.filter(([i]) => prior.axes.includes(i));
    const isShown = (i) => i === task.axis || (isMap() && i === task.second);
    const select = (label, value, options, set) => {
      const made = html("select", {}, ...options.map(([each, words]) => html("option", { value: each }, words)));
      made.value = value;
      made.addEventListener("change", () => {
        set(made.value);
        shown = null;
        showViews();
        loadTasks();
        changed();
      });
      parts.push(html("label", {}, `${label} `, made));
    };
    const field = (i, value, label, set) => {
      const made = taskTable.input(prior.inputs[i], value, label, (given) => {
        if (prior.inputs[i].exposure && !(given > 0)) say(`${prior.inputs[i].name} is the exposure and must be positive; got ${given}.`);
        else set(given);
        showViews();
        if (prior.inputs[i].exposure) loadTasks();
        changed();
      }, showViews);
      if (!prior.inputs[i].levels) made.size = 8;
      return made;
    };
    if (axes.length > 1) {
      select("Show", task.view, [["line", "along one input"], ["map", "a map of two inputs"]], (value) => { task.view = value; });
      select("along", task.axis, axes.filter(([i]) => !isMap() || i !== task.second), (value) => { task.axis = Number(value); });
      if (isMap()) select("and", task.second, axes.filter(([i]) => i !== task.axis), (value) => { task.second = Number(value); });
    }
    for (const [i, name] of names.filter(([each]) => !isShown(each)).slice(0, MAX_FIXED)) {
      const role = prior.inputs[i].exposure ? " (exposure)" : prior.inputs[i].covariate ? " (of the task)" : "";
      parts.push(html("label", {}, `${name}${role} = `, field(i, task.fixed[i], `${name} is`, (value) => { task.fixed[i] = value; })));
    }
    for (const [i, name] of names.filter(([each]) => isShown(each))) {
      const ends = ["low", "high"].map((end) => field(i, prior.inputs[i][end], `${name} ${end === "low" ? "from" : "to"}`, (value) => {
        const [low, high] = end === "low" ? [value, prior.inputs[i].high] : [prior.inputs[i].low, value];
        if (low < high) prior.inputs[i][end] = value;
        else say(`The axis of ${name} must go from a smaller to a larger value.`);
      }));
      parts.push(html("span", { className: "row" }, `${name} from `, ends[0], " to ", ends[1]));
    }
    byId("views").replaceChildren(...parts);
  }

  // Places of the slider: the weights that were searched, and the chosen average where it lies among them.
  function showSlider(entries, left) {
    if (!prior || !entries.length) return void (byId("slider-row").hidden = true);
    const stops = [...entries, { key: "auto", alpha: prior.alpha }].sort((a, b) => a.alpha - b.alpha || a.key.localeCompare(b.key));
    const slider = byId("slider"), at = Math.max(stops.findIndex((each) => each.key === task.alpha), 0);
    byId("slider-row").hidden = false;
    slider.max = stops.length - 1;
    slider.value = at;
    const words = (each) => {
      const alpha = charts.number(Number(each.alpha.toPrecision(2)));
      if (each.key === "auto") return `${alpha}, chosen by cross-validation`;
      if (each.alpha === 0) return "0, target only";
      return Math.abs(each.alpha - prior.pooled) < 1e-6 ? `${alpha}, all tasks alike` : alpha;
    };
    byId("slider-value").textContent = words(stops[at]) + (left ? ` (${left} more being fitted)` : "");
    slider.setAttribute("aria-valuetext", words(stops[at]));
    byId("save-prior").href = `prior.safetensors?alpha=${encodeURIComponent(task.alpha)}`;
    slider.oninput = () => {
      task.alpha = stops[Number(slider.value)].key;
      showSlider(entries, left);
      changed();
    };
  }

  async function loadReadings(file) {
    const answer = await page.attempt(() => server.upload("api/context", file));
    if (!answer) return;
    const pick = (i) => {
      change(() => {
        task.readings = structuredClone(answer.tasks[i].readings);
        const [first] = task.readings;
        prior.inputs.forEach((each, j) => { if (first && each.covariate) task.fixed[j] = first.x[j]; });
        if (!prior.classes && answer.tasks[i].classes) task.classes = [...answer.tasks[i].classes];
      });
      showClasses();
      showViews();
    };
    byId("pick").replaceChildren(...answer.tasks.map((each, i) => html("option", { value: i }, each.name)));
    byId("pick-row").hidden = answer.tasks.length < 2;
    byId("pick").onchange = () => pick(Number(byId("pick").value));
    if (answer.tasks.length) pick(0);
    else say(`${file.name} has no readings.`);
  }

  const onClick = (id, action) => byId(id).addEventListener("click", action);
  const download = (name) => page.attempt(async () => save(await server.file(name, request()), name));
  const pictures = () => (isMap() && !prior.labels ? [[chart, "mean"], [second, "std"]] : [[chart, "prediction"]]);

  [chart, second].forEach((svg, k) => {
    svg.addEventListener("pointerdown", (event) => onDown(event, k));
    svg.addEventListener("pointermove", (event) => onMove(event, k));
    svg.addEventListener("pointerup", onUp);
    svg.addEventListener("pointercancel", onUp);
    svg.addEventListener("dblclick", (event) => {
      const i = event.target.getAttribute("data-reading");
      if (i !== null) remove(Number(i));
    });
  });
  byId("coverage-value").textContent = `${byId("coverage").value}%`;
  byId("coverage").addEventListener("input", () => {
    byId("coverage-value").textContent = `${byId("coverage").value}%`;
    ask();
  });
  for (const id of ["show-tasks", "show-samples"]) byId(id).addEventListener("change", ask);
  byId("context").addEventListener("change", (event) => {
    if (event.target.files.length) loadReadings(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("keydown", (event) => {
    const isField = event.target.matches?.("input:not([type=range], [type=checkbox], [type=radio]), textarea");
    if (!prior || isField || event.shiftKey || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
    event.preventDefault();
    undo();
  });
  onClick("add", addInTheMiddle);
  onClick("undo", undo);
  onClick("clear", () => {
    focused = null;
    change(() => { task.readings = []; });
  });
  onClick("save-csv", () => download("predictions.csv"));
  onClick("save-readings", () => download("readings.csv"));
  onClick("save-svg", () => pictures().forEach(([svg, name]) => save(taskChart.asSvg(svg), `${name}.svg`)));
  onClick("save-png", () => page.attempt(async () => {
    for (const [svg, name] of pictures()) save(await taskChart.asPng(svg), `${name}.png`);
  }));
  onClick("make-report", () => page.attempt(async () => {
    Object.assign(page.state, await server.post("api/report", { without_data: byId("without-data").checked }));
    fitPanel.showFit(page.state.fit);
    page.watch();
  }));
  byId("code-details").addEventListener("toggle", () => { if (byId("code-details").open) showCode(); });
  new ResizeObserver(() => { if (dragged === null) draw(); }).observe(byId("charts"));

  return { showPrior, showSlider };
})();
