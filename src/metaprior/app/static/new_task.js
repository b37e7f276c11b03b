"use strict";
/* A new task: readings that are clicked into a chart, and what the prior predicts from them. */
const newTask = (() => {
  const NEAR = 16, MAX_UNDO = 200; // pixels to a reading that is meant; steps
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const chart = byId("chart"), second = byId("second");
  let prior = null, task = null, past = [], tasks = null, shown = null, frames = [];
  let isAsking = false, asksAgain = false, dragged = null, focused = null, places = [];

  const input = (i) => prior.inputs[i];
  const isMap = () => task.view === "map";
  const key = () => `${location.pathname}${prior.revision}`;

  function showPrior(given) {
    prior = given;
    byId("task-panel").hidden = !prior;
    if (!prior) return;
    [past, tasks, shown, focused] = [[], null, null, null];
    task = JSON.parse(sessionStorage.getItem(key())) ?? {
      readings: [], axis: 0, second: prior.inputs.length > 1 ? 1 : 0, view: prior.inputs.length === 2 ? "map" : "line",
      fixed: prior.inputs.map((each) => each.typical), classes: prior.classes ?? ["A", "B"], label: 0, alpha: "auto", name: "",
    };
    byId("slider-row").hidden = true;
    showViews();
    showClasses();
    loadTasks();
    changed();
  }

  // ---------------------------------------------------------------- requests

  function request() {
    const { axis, fixed, readings, alpha, view, label } = task;
    return {
      revision: prior.revision, readings, coverage: Number(byId("coverage").value) / 100, axis, fixed, alpha,
      range: range(axis), samples: byId("show-samples").checked && !prior.labels, map: view === "map",
      second: task.second, second_range: range(task.second), class: label, classes: prior.classes ? null : task.classes,
    };
  }

  const range = (i) => [input(i).low, input(i).high];

  // Ask for predictions: one request at a time, the latest state next.
  async function ask() {
    if (isAsking) return void (asksAgain = true);
    isAsking = true;
    const asked = prior;
    try {
      const answer = await server.post("api/predict", request());
      if (asked === prior) shown = answer;
    } catch (error) {
      say(error.message);
      if (error.status === 409) page.refresh().catch(() => {});
    }
    isAsking = false;
    if (asksAgain) {
      asksAgain = false;
      return ask();
    }
    draw();
    showNotes(shown?.notes ?? []);
    if (byId("code-details").open) showCode();
    document.body.dataset.answered = String(Number(document.body.dataset.answered ?? 0) + 1);
  }

  async function loadTasks() {
    const asked = prior;
    tasks = null;
    if (!prior.n_tasks || prior.labels) return;
    const answer = await page.attempt(() => server.post("api/tasks", { revision: prior.revision, axis: task.axis }));
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

  function changed() {
    sessionStorage.setItem(key(), JSON.stringify(task));
    byId("undo").disabled = !past.length;
    byId("clear").disabled = !task.readings.length;
    showReadings();
    draw();
    ask();
  }

  function undo() {
    if (!past.length) return;
    Object.assign(task, JSON.parse(past.pop()));
    focused = null;
    showClasses();
    changed();
  }

  function remove(i) {
    remember();
    task.readings.splice(i, 1);
    focused = task.readings.length ? Math.min(i, task.readings.length - 1) : null;
    changed();
  }

  // A value with as many digits as a place in a chart can be told by.
  function round(value, [low, high]) {
    const step = 10 ** Math.floor(Math.log10((high - low) / 200));
    return Number((Math.round(value / step) * step).toPrecision(12));
  }

  function place(reading, x, y) {
    reading.x[task.axis] = round(x, range(task.axis));
    if (isMap()) reading.x[task.second] = round(y, range(task.second));
    else if (!prior.labels) reading.y = round(y, yDomain());
    return reading;
  }

  // The output of a reading that is clicked into a map: what is predicted there, to be corrected in the table.
  function predicted(x, y) {
    if (prior.labels) return task.label;
    if (!isMap()) return y;
    if (!shown?.mean) return (prior.y_range[0] + prior.y_range[1]) / 2;
    const cell = (value, [low, high], n) => Math.min(Math.max(Math.floor(((value - low) / (high - low)) * n), 0), n - 1);
    const { mean } = shown;
    return round(mean[cell(y, shown.y, mean.length)][cell(x, shown.x, mean[0].length)], prior.y_range);
  }

  function add(x, y) {
    remember();
    task.readings.push(place({ x: [...task.fixed], y: predicted(x, y) }, x, y));
    return task.readings.length - 1;
  }

  // ---------------------------------------------------------------- drawing

  function yDomain() {
    if (prior.labels) return [0, 1.08];
    const values = task.readings.map((reading) => reading.y), [low, high] = prior.y_range;
    return [Math.min(low, ...values), Math.max(high, ...values)];
  }

  const axis = (i) => ({ domain: range(i), label: input(i).name, dates: input(i).dates });

  function draw() {
    if (!prior || byId("task-panel").hidden) return;
    byId("second-figure").hidden = !isMap() || prior.labels;
    for (const id of ["coverage-row", "show-row"]) byId(id).hidden = isMap() || prior.labels;
    frames = isMap() ? drawMaps() : [drawLines()];
    places = [];
    frames.forEach((f, k) => task.readings.forEach((reading, i) => drawReading(f, reading, i, k)));
    if (focused !== null) chart.querySelector(`[data-reading="${focused}"]`)?.focus({ preventScroll: true });
  }

  function size(svg) {
    const width = Math.min(Math.max(svg.parentElement.clientWidth || 720, 300), 1040);
    return { width, height: Math.max(Math.round(width * (isMap() ? 0.8 : 0.46)), 260) };
  }

  function drawLines() {
    const label = prior.labels ? "probability" : prior.output;
    const title = `Predictions of ${prior.output} for a new task, from ${task.readings.length} readings`;
    const f = charts.frame(chart, { ...size(chart), title, x: axis(task.axis), y: { domain: yDomain(), label } });
    if (!prior.labels && byId("show-tasks").checked) charts.tasks(f, tasks);
    if (!shown || shown.kind === "map") return f;
    drawOutside(f);
    byId("chart-caption").textContent = `Probability of each ${prior.output}. Dots: readings, in the color of their label.`;
    if (shown.kind === "probabilities") {
      shown.probabilities.forEach((row, i) => charts.line(f, shown.x, row, `probability ${charts.classOf(i)}`));
      return f;
    }
    charts.band(f, shown.x, shown.lower, shown.upper);
    for (const drawn of byId("show-samples").checked ? shown.samples ?? [] : []) charts.line(f, shown.sample_x, drawn, "sample");
    charts.line(f, shown.x, shown.mean, "mean");
    const percent = byId("coverage").value, many = prior.is_density ? "density" : "lines";
    const behind = tasks && byId("show-tasks").checked ? ` Behind: ${prior.n_tasks} training tasks, as ${many}.` : "";
    const beyond = shown.outside.some(Boolean) ? " Shaded: outside the range of the training tasks." : "";
    byId("chart-caption").textContent = `Mean and ${percent}% band of a new reading.${behind}${beyond}`;
    return f;
  }

  function drawOutside(f) {
    shown.outside.forEach((isOutside, i) => {
      if (!isOutside) return;
      const [left, right] = [shown.x[Math.max(i - 1, 0)], shown.x[Math.min(i + 1, shown.x.length - 1)]];
      const width = (f.sx(right) - f.sx(left)) / 2;
      charts.element("rect", { class: "outside", x: f.sx(shown.x[i]) - width / 2, width, y: f.box.y, height: f.box.height }, f.plot);
    });
  }

  function drawMaps() {
    const made = [[chart, prior.labels ? "probability" : "mean", byId("chart-caption")]];
    if (!prior.labels) made.push([second, "std", byId("second-caption")]);
    return made.map(([svg, what, caption]) => {
      const words = { probability: `probability of ${task.classes[task.label]}`, mean: `mean of ${prior.output}`, std: "standard deviation" }[what];
      const title = `Map: ${words}`;
      const f = charts.frame(svg, { ...size(svg), title, x: axis(task.axis), y: axis(task.second) });
      if (shown?.[what]) {
        const values = shown[what].flat();
        const low = what === "probability" ? 0 : Math.min(...values), high = what === "probability" ? 1 : Math.max(...values);
        charts.map(f, { x: shown.x, y: shown.y, values: shown[what], low, high });
        const scale = html("span", { className: "scale" });
        scale.style.background = charts.gradient();
        caption.replaceChildren(`${words}: ${charts.number(low)}`, scale, charts.number(high));
      }
      return f;
    });
  }

  function drawReading(f, reading, i, k) {
    const x = reading.x[task.axis], y = isMap() ? reading.x[task.second] : prior.labels ? 1 : reading.y;
    const kind = prior.labels ? `labeled ${charts.classOf(reading.y)}` : "reading";
    const [dot] = charts.points(f, [x], [y], `point ${kind}`, 7, f.svg);
    const value = prior.labels ? task.classes[reading.y] : charts.number(reading.y);
    dot.setAttribute("tabindex", "0");
    dot.setAttribute("role", "button");
    dot.setAttribute("data-reading", i);
    dot.setAttribute("aria-label", `Reading ${i + 1}: ${inputWords(reading)}, ${prior.output} ${value}. Arrows move it, Delete removes it.`);
    dot.addEventListener("keydown", (event) => onKey(event, i));
    dot.addEventListener("focus", () => { focused = i; });
    dot.addEventListener("blur", () => { if (document.activeElement !== document.body) focused = null; });
    places.push({ i, k, x: f.sx(x), y: f.sy(y) });
  }

  const text = (value, i) => (input(i).dates ? charts.date(value) : charts.number(value));
  const inputWords = (reading) => prior.inputs.map((each, i) => `${each.name} ${text(reading.x[i], i)}`).join(", ");

  // ---------------------------------------------------------------- pointer and keys

  function position(event, f) {
    const box = f.svg.getBoundingClientRect(), width = Number(f.svg.getAttribute("viewBox").split(" ")[2]);
    const scale = width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  function onDown(event, k) {
    const f = frames[k];
    if (!f || event.button !== 0) return;
    const [px, py] = position(event, f);
    const near = places.filter((each) => each.k === k && Math.hypot(each.x - px, each.y - py) < NEAR)
      .sort((a, b) => Math.hypot(a.x - px, a.y - py) - Math.hypot(b.x - px, b.y - py))[0];
    const { box } = f, isInside = px >= box.x && px <= box.x + box.width && py >= box.y && py <= box.y + box.height;
    if (!near && !isInside) return;
    event.preventDefault();
    f.svg.setPointerCapture(event.pointerId);
    if (near) remember();
    dragged = near ? near.i : add(f.ix(px), f.iy(py));
    focused = dragged;
    changed();
  }

  function onMove(event, k) {
    if (dragged === null) return;
    const f = frames[k], [px, py] = position(event, f), { box } = f;
    const inside = (value, low, span) => Math.min(Math.max(value, low), low + span);
    place(task.readings[dragged], f.ix(inside(px, box.x, box.width)), f.iy(inside(py, box.y, box.height)));
    draw();
    ask();
  }

  function onUp() {
    if (dragged === null) return;
    dragged = null;
    changed();
  }

  function onKey(event, i) {
    if (event.key === "Delete" || event.key === "Backspace") {
      event.preventDefault();
      return remove(i);
    }
    const move = MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    remember();
    const step = event.shiftKey ? 0.05 : 0.01, reading = task.readings[i], [low, high] = range(task.axis);
    const [bottom, top] = isMap() ? range(task.second) : yDomain();
    const y = isMap() ? reading.x[task.second] : reading.y;
    place(reading, reading.x[task.axis] + move[0] * step * (high - low), y + move[1] * step * (top - bottom));
    changed();
  }

  // ---------------------------------------------------------------- controls

  function showReadings() {
    const names = [...prior.inputs.map((each) => each.name), prior.output, ""];
    const head = html("tr", {}, html("th", { scope: "col" }, "#"), ...names.map((name) => html("th", { scope: "col" }, name)));
    const rows = task.readings.map((reading, i) => {
      const cells = prior.inputs.map((each, j) => html("td", {}, cell(text(reading.x[j], j), `${each.name} of reading ${i + 1}`,
        (value) => { reading.x[j] = value; }, each.dates)));
      const drop = html("button", { type: "button", ariaLabel: `Remove reading ${i + 1}` }, "×");
      drop.addEventListener("click", () => remove(i));
      return html("tr", {}, html("th", { scope: "row" }, String(i + 1)), ...cells, html("td", {}, output(reading, i)), html("td", {}, drop));
    });
    const none = html("tr", {}, html("td", { colSpan: names.length + 1, className: "muted" }, "none: predictions come from the prior alone"));
    byId("readings").replaceChildren(byId("readings").caption, html("thead", {}, head), html("tbody", {}, ...(rows.length ? rows : [none])));
  }

  function cell(value, label, set, isDate = false) {
    const field = html("input", { type: "text", inputMode: isDate ? "text" : "decimal", value: String(value).replace(/,/g, ""), ariaLabel: label });
    field.addEventListener("change", () => {
      const given = isDate ? Date.parse(`${field.value.trim().replace(" ", "T")}${field.value.includes(":") ? "Z" : ""}`) / 864e5 : Number(field.value.trim() || NaN);
      if (!Number.isFinite(given)) {
        say(`${label} must be a ${isDate ? "date, such as 2026-01-31" : "number"}; got “${field.value}”.`);
        return showReadings();
      }
      remember();
      set(given);
      changed();
    });
    return field;
  }

  function output(reading, i) {
    const label = `${prior.output} of reading ${i + 1}`;
    if (!prior.labels) return cell(charts.number(reading.y), label, (value) => { reading.y = value; });
    const select = html("select", { ariaLabel: label }, ...task.classes.map((name, k) => html("option", { value: k }, name)));
    select.value = reading.y;
    select.addEventListener("change", () => {
      remember();
      reading.y = Number(select.value);
      changed();
    });
    return select;
  }

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
      remember();
      task.classes.push(String.fromCharCode(65 + task.classes.length));
      showClasses();
      changed();
    });
    byId("classes").replaceChildren(...choices, ...(prior.classes || task.classes.length > 5 ? [] : [more]));
  }

  // Which inputs the chart shows, and what the others are.
  function showViews() {
    const n = prior.inputs.length, parts = [];
    const what = prior.labels ? "Choose a label, click readings" : "Click readings", corrected = isMap() && !prior.labels;
    byId("task-help").textContent = `${what} into the chart, drag them, or use the table below. `
      + (corrected ? `A new reading gets the ${prior.output} that is predicted there: correct it in the table. ` : "")
      + (prior.n_tasks || prior.fitted_here ? "" : "The file of a prior does not hold its training tasks, so none are drawn.");
    const select = (label, value, options, set) => {
      const made = html("select", {}, ...options.map(([each, words]) => html("option", { value: each }, words)));
      made.value = value;
      made.addEventListener("change", () => {
        set(made.value);
        showViews();
        loadTasks();
        shown = null;
        changed();
      });
      parts.push(html("label", {}, `${label} `, made));
    };
    if (n > 1) {
      const names = prior.inputs.map((each, i) => [i, each.name]);
      select("Show", task.view, [["line", "along one input"], ["map", "a map of two inputs"]], (value) => { task.view = value; });
      select("along", task.axis, names.filter(([i]) => !isMap() || i !== task.second), (value) => { task.axis = Number(value); });
      if (isMap()) select("and", task.second, names.filter(([i]) => i !== task.axis), (value) => { task.second = Number(value); });
      prior.inputs.forEach((each, i) => {
        if (i === task.axis || (isMap() && i === task.second)) return;
        const field = cell(text(task.fixed[i], i), `${each.name} is`, (value) => { task.fixed[i] = value; }, each.dates);
        field.size = 8;
        parts.push(html("label", {}, `${each.name} = `, field));
      });
    }
    for (const i of isMap() ? [task.axis, task.second] : [task.axis]) {
      const field = (end, words) => {
        const made = cell(text(input(i)[end], i), `${input(i).name} ${words}`, (value) => {
          const [low, high] = end === "low" ? [value, input(i).high] : [input(i).low, value];
          if (low < high) input(i)[end] = value;
          else say(`The axis of ${input(i).name} must go from a smaller to a larger value.`);
        }, input(i).dates);
        made.size = 8;
        return made;
      };
      parts.push(html("span", { className: "row" }, `${input(i).name} from `, field("low", "from"), " to ", field("high", "to")));
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
      return each.alpha === 0 ? "0, target only" : Math.abs(each.alpha - prior.pooled) < 1e-6 ? `${alpha}, all tasks alike` : alpha;
    };
    byId("slider-value").textContent = words(stops[at]) + (left ? ` (${left} more being fitted)` : "");
    slider.setAttribute("aria-valuetext", words(stops[at]));
    slider.oninput = () => {
      task.alpha = stops[Number(slider.value)].key;
      byId("save-prior").href = `prior.safetensors?alpha=${task.alpha}`;
      showSlider(entries, left);
      changed();
    };
  }

  function showNotes(notes) {
    byId("task-notes").replaceChildren(...notes.map((note) => html("p", { className: "note small" }, note)));
  }

  async function loadReadings(file) {
    const answer = await page.attempt(() => server.upload("api/context", file));
    if (!answer) return;
    const pick = (i) => {
      remember();
      task.readings = answer.tasks[i].readings;
      if (!prior.classes && answer.tasks[i].classes) task.classes = answer.tasks[i].classes;
      showClasses();
      changed();
    };
    byId("pick").replaceChildren(...answer.tasks.map((each, i) => html("option", { value: i }, each.name)));
    byId("pick-row").hidden = answer.tasks.length < 2;
    byId("pick").onchange = () => pick(Number(byId("pick").value));
    if (answer.tasks.length) pick(0);
    else say(`${file.name} has no readings.`);
  }

  // ---------------------------------------------------------------- exports

  function picture(svg) {
    return new Blob([charts.standalone(svg)], { type: "image/svg+xml" });
  }

  async function png(svg) {
    const image = new Image(), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(charts.standalone(svg))}`;
    await image.decode();
    const canvas = html("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

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
  byId("coverage").addEventListener("input", () => {
    byId("coverage-value").textContent = `${byId("coverage").value}%`;
    if (prior) ask();
  });
  byId("coverage-value").textContent = `${byId("coverage").value}%`;
  for (const id of ["show-tasks", "show-samples"]) byId(id).addEventListener("change", () => ask());
  byId("undo").addEventListener("click", undo);
  byId("clear").addEventListener("click", () => {
    remember();
    task.readings = [];
    focused = null;
    changed();
  });
  byId("add").addEventListener("click", () => {
    const middle = ([low, high]) => (low + high) / 2, x = middle(range(task.axis));
    let y = isMap() ? middle(range(task.second)) : middle(yDomain());
    if (shown?.kind === "curve") y = shown.mean[shown.x.findIndex((each) => each >= x)] ?? y;
    focused = add(x, y);
    changed();
  });
  byId("context").addEventListener("change", (event) => {
    if (event.target.files.length) loadReadings(event.target.files[0]);
    event.target.value = "";
  });
  document.addEventListener("keydown", (event) => {
    const isField = event.target.matches?.("input[type=text], textarea");
    if (prior && !isField && (event.ctrlKey || event.metaKey) && !event.shiftKey && event.key.toLowerCase() === "z") {
      event.preventDefault();
      undo();
    }
  });
  byId("save-csv").addEventListener("click", () => page.attempt(async () => save(await server.file("predictions.csv", request()), "predictions.csv")));
  byId("save-readings").addEventListener("click", () => page.attempt(async () => save(await server.file("readings.csv", request()), "readings.csv")));
  byId("save-svg").addEventListener("click", () => pictures().forEach(([svg, name]) => save(picture(svg), `${name}.svg`)));
  byId("save-png").addEventListener("click", () => page.attempt(async () => {
    for (const [svg, name] of pictures()) save(await png(svg), `${name}.png`);
  }));
  byId("make-report").addEventListener("click", () => page.attempt(async () => {
    Object.assign(page.state, await server.post("api/report"));
    fitPanel.showFit(page.state.fit);
    page.watch();
  }));
  byId("code-details").addEventListener("toggle", () => { if (byId("code-details").open) showCode(); });
  new ResizeObserver(() => { if (dragged === null) draw(); }).observe(byId("charts"));

  return { showPrior, showSlider };
})();
