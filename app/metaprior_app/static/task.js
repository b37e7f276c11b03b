"use strict";
/* A new task: readings that are clicked into a chart or typed, and what the prior predicts from them. */
const newTask = (() => {
  const NEAR = 16, MAX_UNDO = 200; // pixels to a reading that is meant; steps
  const MAX_FIXED = 40; // inputs with a field of their own; others keep their typical value
  const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const DAY = 864e5; // milliseconds
  const chart = byId("chart"), second = byId("second");
  let prior = null, task = null, past = [], tasks = null, shown = null, frames = [], places = [];
  let isAsking = false, asksAgain = false, dragged = null, isMoved = false, focused = null, domain = null;

  const isMap = () => task.view === "map";
  const range = (i) => [prior.inputs[i].low, prior.inputs[i].high];
  // Readings outlive a reload, and a fit to the same columns.
  const key = () => JSON.stringify([location.pathname, prior.inputs.map((each) => [each.name, each.levels]), prior.output,
    prior.classes, prior.whole]);

  function showPrior(given) {
    prior = given;
    byId("task-panel").hidden = !prior;
    if (!prior) return;
    [past, tasks, shown, focused] = [[], null, null, null];
    task = JSON.parse(sessionStorage.getItem(key())) ?? {
      readings: [], axis: prior.axes[0], second: prior.axes[1] ?? prior.axes[0], view: prior.axes.length === 2 ? "map" : "line",
      fixed: prior.inputs.map((each) => each.typical), classes: prior.classes ?? ["A", "B"], label: 0,
    };
    task.alpha = "auto";
    byId("save-prior").href = "prior.safetensors";
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
        const answer = await post("api/predict", request());
        if (asked === prior) shown = answer;
      } catch (error) {
        say(error.message);
        if (error.status === 409) refresh().catch(() => {});
      }
    } while (asksAgain);
    isAsking = false;
    draw();
    byId("task-notes").replaceChildren(...noteLines(shown?.notes ?? []));
    showCode();
  }

  async function loadTasks() {
    const asked = prior, exposure = task.fixed[exposed()] ?? null;
    tasks = null;
    if (!prior.n_tasks || prior.labels) return;
    const answer = await attempt(() => post("api/tasks", { revision: prior.revision, axis: task.axis, exposure }));
    if (asked !== prior || !answer) return;
    tasks = answer.tasks;
    draw();
  }

  async function showCode() {
    const code = byId("code-details").open && await post("api/code", request()).catch(() => null);
    if (code) for (const id of ["python", "command"]) byId(id).textContent = code[id];
  }

  // ---------------------------------------------------------------- readings

  function change(how, withTable = true) {
    remember();
    how();
    changed(withTable);
  }

  function remember() {
    past.push(JSON.stringify({ readings: task.readings, classes: task.classes }));
    past.splice(0, past.length - MAX_UNDO);
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

  // The nearest value that the output can have: of counts and ranks a whole number.
  const possible = (y) => (prior.whole ? Math.min(Math.max(Math.round(y), prior.whole.lowest), prior.whole.highest) : y);

  // The exposure of a reading in units of the chart's, which its count is drawn at.
  const exposed = () => prior.inputs.findIndex((each) => each.exposure);
  const share = ({ x }) => (exposed() >= 0 && x[exposed()] > 0 ? x[exposed()] / task.fixed[exposed()] : 1);

  function place(reading, x, y) {
    reading.x[task.axis] = round(x, range(task.axis));
    if (isMap()) reading.x[task.second] = round(y, range(task.second));
    else if (!prior.labels) reading.y = possible(round(y, domain) * share(reading));
  }

  // The output of a reading that is clicked into a map: what is predicted there, to be corrected in the table.
  function predicted(x, y) {
    if (!isMap() || !shown?.mean) return (prior.y_range[0] + prior.y_range[1]) / 2;
    const cell = (value, [low, high], n) => Math.min(Math.max(Math.floor(((value - low) / (high - low)) * n), 0), n - 1);
    const { mean } = shown;
    return round(mean[cell(y, shown.y, mean.length)][cell(x, shown.x, mean[0].length)], prior.y_range);
  }

  function add(x, y) {
    remember();
    const reading = { x: [...task.fixed], y: prior.labels ? task.label : possible(predicted(x, y)) };
    place(reading, x, y);
    focused = task.readings.push(reading) - 1;
    return focused;
  }

  function addInTheMiddle() {
    const middle = ([low, high]) => (low + high) / 2, x = middle(range(task.axis));
    let y = middle(isMap() ? range(task.second) : domain);
    if (shown?.kind === "curve") y = shown.mean[shown.x.findIndex((each) => each >= x)] ?? y;
    add(x, y);
    changed();
  }

  // Days since 1970 of a date such as 2026-01-31 or 2026-01-31 12:30, in UTC.
  function parseDate(words) {
    const plain = words.trim().replace(" ", "T");
    return Date.parse(plain.includes(":") && !plain.endsWith("Z") ? `${plain}Z` : plain) / DAY;
  }

  // A field for a number, a date or, of a category or a class, one of `levels`. `set` takes the value that was typed and may
  // return why it cannot be; `refuse` is called where there is none.
  function field({ levels, dates }, value, label, set, refuse) {
    if (levels) {
      const select = html("select", { ariaLabel: label }, ...options(levels.map((name, k) => [k, name])));
      select.value = value;
      select.addEventListener("change", () => set(Number(select.value)));
      return select;
    }
    const words = dates ? charts.date(value) : String(Number(value.toPrecision(7)));
    const made = html("input", { type: "text", inputMode: dates ? "text" : "decimal", size: 8, value: words, ariaLabel: label });
    made.addEventListener("change", () => {
      const given = dates ? parseDate(made.value) : Number(made.value.trim().replace(",", ".") || NaN);
      const wrong = Number.isFinite(given) ? set(given) : `be a ${dates ? "date, such as 2026-01-31" : "number"}`;
      if (!wrong) return;
      say(`${label} must ${wrong}; got “${made.value}”.`);
      refuse();
    });
    return made;
  }

  function showReadings() {
    const own = prior.inputs.map((each, j) => [each, j]).filter(([each]) => !each.covariate);
    const rows = task.readings.map((reading, i) => {
      const set = (assign) => (value) => void change(() => assign(value), false);
      const cells = own.map(([each, j]) =>
        field(each, reading.x[j], `${each.name} of reading ${i + 1}`, set((value) => { reading.x[j] = value; }), showReadings));
      const setOutput = set((value) => { reading.y = value; }), ends = prior.whole;
      const refusal = (value) => (possible(value) === value ? setOutput(value)
        : `be a whole number, ${ends.lowest} or more${ends.highest < 1e9 ? `, ${ends.highest} at most` : ""}`);
      const kind = { levels: prior.labels ? task.classes : null };
      const output = field(kind, reading.y, `${prior.output} of reading ${i + 1}`, prior.labels ? setOutput : refusal, showReadings);
      const button = html("button", { type: "button", ariaLabel: `Remove reading ${i + 1}` }, "×");
      button.addEventListener("click", () => remove(i));
      return [String(i + 1), ...cells, output, button];
    });
    const none = ["none: predictions come from the prior alone"];
    fill(byId("readings"), ["#", ...own.map(([each]) => each.name), prior.output, "remove"], rows.length ? rows : [none]);
  }

  // ---------------------------------------------------------------- the chart

  function draw() {
    if (!prior) return;
    if (dragged === null) domain = yDomain(); // a scale that moves under the pointer would be confusing
    byId("second-figure").hidden = !isMap() || prior.labels;
    for (const id of ["coverage-row", "show-row"]) byId(id).hidden = isMap() || prior.labels;
    frames = isMap() ? drawMaps() : [drawLines()];
    for (const { svg } of frames) svg.setAttribute("role", "group"); // an image has nothing inside to be focused
    places = frames.flatMap((f, k) => task.readings.map((reading, i) => drawReading(f, reading, i, k)));
  }

  // Limits of y: about those of the training tasks, and whatever readings and band need beyond them.
  function yDomain() {
    if (prior.labels) return [0, 1.08];
    const i = exposed(), ratio = i >= 0 ? task.fixed[i] / prior.inputs[i].typical : 1;
    const [low, high] = prior.y_range.map((end) => end * ratio), span = high - low;
    const band = shown?.kind === "curve" ? [...shown.lower, ...shown.upper] : [];
    const values = band.map((value) => Math.min(Math.max(value, low - span), high + span));
    values.push(...task.readings.map((reading) => reading.y / share(reading)));
    return [Math.min(low, ...values), Math.max(high, ...values)];
  }

  const axis = (i) => ({ domain: range(i), label: prior.inputs[i].name, dates: prior.inputs[i].dates });

  function size(svg, tall) {
    const width = Math.min(Math.max(svg.parentElement.clientWidth || 720, 300), 1040);
    return { width, height: Math.max(Math.round(width * tall), 260) };
  }

  function text(value, i) {
    const { levels, dates } = prior.inputs[i];
    return levels ? levels[value] : dates ? charts.date(value) : charts.number(value);
  }

  // The inputs that a chart does not run along: said under it where there are categories, covariates or an exposure.
  function fixedWords() {
    const isSaid = prior.inputs.some((each) => each.levels || each.covariate || each.exposure);
    const words = prior.inputs.map((each, i) => `${each.name}${each.exposure ? " (exposure)" : ""} ${text(task.fixed[i], i)}`)
      .filter((_, i) => i !== task.axis && !(isMap() && i === task.second));
    return isSaid && words.length ? ` At ${words.join(", ")}.` : "";
  }

  function drawLines() {
    const withTasks = !prior.labels && byId("show-tasks").checked && tasks;
    const y = { domain, label: prior.labels ? "probability" : prior.output, whole: Boolean(prior.whole) };
    const title = `Predictions of ${prior.output} for a new task, from ${task.readings.length} readings`;
    const f = charts.frame(chart, { ...size(chart, 0.46), title, x: axis(task.axis), y });
    if (withTasks) charts.tasks(f, tasks);
    if (!shown || shown.kind === "map") return f;
    const half = (f.sx(shown.x[1]) - f.sx(shown.x[0])) / 2;
    shown.outside.forEach((isOutside, i) => {
      const box = { x: f.sx(shown.x[i]) - half, width: 2 * half, y: f.box.y, height: f.box.height };
      if (isOutside) charts.element("rect", { class: "outside", ...box }, f.plot);
    });
    if (prior.labels) {
      shown.probabilities.forEach((row, i) => charts.line(f, shown.x, row, `probability ${charts.classOf(i)}`));
      byId("chart-caption").textContent = `Probability of each ${prior.output}. Dots: readings, in the color of their label.${fixedWords()}`;
      return f;
    }
    (shown.whole ? charts.steps : charts.band)(f, shown.x, shown.lower, shown.upper);
    const drawn = byId("show-samples").checked ? shown.samples ?? [] : [];
    for (const values of drawn) charts.line(f, shown.sample_x, values, "sample");
    charts.line(f, shown.x, shown.mean, "mean");
    byId("chart-caption").textContent = lineWords(withTasks);
    return f;
  }

  function lineWords(withTasks) {
    const coverage = byId("coverage").value, rates = exposed() >= 0 ? ", their counts at the exposure of the chart" : "";
    return [
      shown.whole ? `Mean, and whole numbers that hold a new reading with a probability of at least ${coverage}%.`
        : `Mean and ${coverage}% band of a new reading.`,
      fixedWords(),
      task.readings.some((reading) => share(reading) !== 1) ? " Readings of another exposure are drawn at the same rate." : "",
      prior.has_conformal ? " The band is the model’s own, not the conformal interval of `metaprior predict --method conformal`." : "",
      withTasks ? ` Behind: ${prior.n_tasks} training tasks, as ${prior.is_density ? "density" : "lines"}${rates}.` : "",
      shown.outside.some(Boolean) ? " Shaded: outside the range of the training tasks." : "",
    ].join("");
  }

  function drawMaps() {
    if (prior.labels) return [drawMap(chart, "probability", `probability of ${task.classes[task.label]}`)];
    return [drawMap(chart, "mean", `mean of ${prior.output}`), drawMap(second, "std", "standard deviation")];
  }

  function drawMap(svg, what, words) {
    const f = charts.frame(svg, { ...size(svg, 0.8), title: `Map: ${words}`, x: axis(task.axis), y: axis(task.second) });
    if (!shown?.[what]) return f;
    const values = shown[what].flat();
    const [low, high] = what === "probability" ? [0, 1] : [Math.min(...values), Math.max(...values)];
    charts.map(f, { x: shown.x, y: shown.y, values: shown[what], low, high });
    const scale = html("span", { className: "scale" });
    scale.style.background = charts.gradient();
    byId(`${svg.id}-caption`).replaceChildren(`${words}: ${charts.number(low)}`, scale, `${charts.number(high)}.${fixedWords()}`);
    return f;
  }

  function drawReading(f, reading, i, k) {
    const x = reading.x[task.axis], y = isMap() ? reading.x[task.second] : prior.labels ? 1 : reading.y / share(reading);
    const kind = prior.labels ? `labeled ${charts.classOf(reading.y)}` : "reading";
    const [dot] = charts.points(f, [x], [y], `point ${kind}`, 7, f.svg);
    const value = prior.labels ? task.classes[reading.y] : charts.number(reading.y);
    const at = prior.inputs.map((each, j) => `${each.name} ${text(reading.x[j], j)}`).join(", ");
    const label = `Reading ${i + 1}: ${at}, ${prior.output} ${value}. Arrows move it, Delete removes it.`;
    const given = { tabindex: "0", role: "button", "data-reading": i, "aria-label": label };
    for (const [name, each] of Object.entries(given)) dot.setAttribute(name, each);
    dot.addEventListener("keydown", (event) => onKey(event, i));
    dot.addEventListener("focus", () => { focused = i; });
    dot.addEventListener("blur", (event) => { if (event.relatedTarget) focused = null; });
    if (k === 0 && i === focused) dot.focus({ preventScroll: true });
    return { i, k, x: f.sx(x), y: f.sy(y) };
  }

  // ---------------------------------------------------------------- pointer and keys

  function position(event, { svg }) {
    const box = svg.getBoundingClientRect(), scale = Number(svg.getAttribute("viewBox").split(" ")[2]) / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  function onDown(event, k) {
    const f = frames[k];
    if (!f || event.button !== 0) return;
    const [px, py] = position(event, f), { box } = f, distance = (each) => Math.hypot(each.x - px, each.y - py);
    const [near] = places.filter((each) => each.k === k && distance(each) < NEAR).sort((a, b) => distance(a) - distance(b));
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
    const f = frames[k], [px, py] = position(event, f), { box } = f;
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
    const move = MOVES[event.key], isRemoval = ["Delete", "Backspace"].includes(event.key);
    if (!move && !isRemoval) return;
    event.preventDefault();
    if (isRemoval) return remove(i);
    const step = event.shiftKey ? 0.05 : 0.01, reading = task.readings[i], [low, high] = range(task.axis);
    const [bottom, top] = isMap() ? range(task.second) : domain, y = isMap() ? reading.x[task.second] : reading.y / share(reading);
    const least = prior.whole && !isMap() ? 1 / share(reading) : 0; // whole numbers would stay where they are
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
      return html("label", {}, radio, " ", html("span", { className: `swatch ${charts.classOf(i)}` }), ` ${name}`);
    });
    const more = html("button", { type: "button" }, "One class more");
    more.addEventListener("click", () => {
      change(() => task.classes.push(String.fromCharCode(65 + task.classes.length)));
      showClasses();
    });
    byId("classes").replaceChildren(...choices, ...(prior.classes || task.classes.length > 5 ? [] : [more]));
  }

  // Which inputs the chart shows, from where to where, and what the others are.
  function showViews() {
    const what = prior.labels ? "Choose a label, click readings" : "Click readings";
    const corrected = isMap() && !prior.labels
      ? ` A new reading gets the ${prior.output} that is predicted there: correct it in the table.` : "";
    const without = prior.n_tasks ? "" : " The file of a prior does not hold its training tasks, so none are drawn.";
    byId("task-help").textContent = `${what} into the chart, drag them, or use the table below.${corrected}${without}`;
    const again = () => {
      showViews();
      loadTasks();
      changed();
    };
    const select = (label, name, pairs) => {
      const made = html("select", {}, ...options(pairs));
      made.value = task[name];
      made.addEventListener("change", () => {
        task[name] = name === "view" ? made.value : Number(made.value);
        shown = null;
        again();
      });
      return html("label", {}, `${label} `, made);
    };
    const parts = [], names = prior.axes.map((i) => [i, prior.inputs[i].name]), isShown = (i) => i === task.axis || (isMap() && i === task.second);
    if (names.length > 1) {
      parts.push(select("Show", "view", [["line", "along one input"], ["map", "a map of two inputs"]]));
      parts.push(select("along", "axis", names.filter(([i]) => !isMap() || i !== task.second)));
      if (isMap()) parts.push(select("and", "second", names.filter(([i]) => i !== task.axis)));
    }
    const fields = prior.inputs.map((each, i) => (isShown(i) ? axisFields(each, again) : fixedField(each, i, again)));
    byId("views").replaceChildren(...parts, ...fields.slice(0, MAX_FIXED));
  }

  function fixedField(each, i, again) {
    const role = each.exposure ? " (exposure)" : each.covariate ? " (of the task)" : "";
    const made = field(each, task.fixed[i], `${each.name} is`, (value) => {
      if (each.exposure && !(value > 0)) return "be positive, as an exposure";
      task.fixed[i] = value;
      return void again();
    }, showViews);
    return html("label", {}, `${each.name}${role} = `, made);
  }

  function axisFields(each, again) {
    const ends = ["low", "high"].map((end) => field(each, each[end], `${each.name} ${end === "low" ? "from" : "to"}`, (value) => {
      const { low, high } = { low: each.low, high: each.high, [end]: value };
      if (!(low < high)) return "keep the axis going from a smaller to a larger value";
      each[end] = value;
      return void again();
    }, showViews));
    return html("span", { className: "row" }, `${each.name} from `, ends[0], " to ", ends[1]);
  }

  // Places of the slider: the weights that were searched, and the chosen average where it lies among them.
  function showSlider(entries, left) {
    byId("slider-row").hidden = !prior || !entries.length;
    if (!prior || !entries.length) return;
    const stops = [...entries, { key: "auto", alpha: prior.alpha }].sort((a, b) => a.alpha - b.alpha || a.key.localeCompare(b.key));
    const slider = byId("slider"), at = Math.max(stops.findIndex((each) => each.key === task.alpha), 0), { key: name, alpha } = stops[at];
    const isPooled = Math.abs(alpha - prior.pooled) < 1e-6;
    const about = name === "auto" ? ", chosen by cross-validation" : alpha === 0 ? ", target only" : isPooled ? ", all tasks alike" : "";
    const words = `${charts.number(Number(alpha.toPrecision(2)))}${about}`;
    slider.max = stops.length - 1;
    slider.value = at;
    slider.setAttribute("aria-valuetext", words);
    byId("slider-value").textContent = words + (left ? ` (${left} more being fitted)` : "");
    byId("save-prior").href = `prior.safetensors?alpha=${encodeURIComponent(task.alpha)}`;
    slider.oninput = () => {
      task.alpha = stops[Number(slider.value)].key;
      showSlider(entries, left);
      changed();
    };
  }

  async function loadReadings(file) {
    const answer = await attempt(() => upload("api/context", file));
    if (!answer) return;
    if (!answer.tasks.length) return say(`${file.name} has no readings.`);
    const pick = (i) => {
      const { readings, classes } = structuredClone(answer.tasks[i]);
      change(() => {
        task.readings = readings;
        prior.inputs.forEach((each, j) => { if (readings.length && each.covariate) task.fixed[j] = readings[0].x[j]; });
        if (!prior.classes && classes) task.classes = classes;
      });
      showClasses();
      showViews();
    };
    byId("pick").replaceChildren(...options(answer.tasks.map((each, i) => [i, each.name])));
    byId("pick-row").hidden = answer.tasks.length < 2;
    byId("pick").onchange = () => pick(Number(byId("pick").value));
    pick(0);
  }

  // ---------------------------------------------------------------- exports

  const download = (name) => attempt(async () => save(await (await send(name, JSON.stringify(request()))).blob(), name));
  const pictures = () => (isMap() && !prior.labels ? [[chart, "mean"], [second, "std"]] : [[chart, "prediction"]]);
  const asSvg = (svg) => new Blob([charts.standalone(svg)], { type: "image/svg+xml" });

  async function asPng(svg) {
    const image = new Image(), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(charts.standalone(svg))}`;
    await image.decode();
    const canvas = html("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  function showCoverage() {
    byId("coverage-value").textContent = `${byId("coverage").value}%`;
  }

  [chart, second].forEach((svg, k) => {
    svg.addEventListener("pointerdown", (event) => onDown(event, k));
    svg.addEventListener("pointermove", (event) => onMove(event, k));
    for (const end of ["pointerup", "pointercancel"]) svg.addEventListener(end, onUp);
    svg.addEventListener("dblclick", (event) => {
      const i = event.target.getAttribute("data-reading");
      if (i !== null) remove(Number(i));
    });
  });
  showCoverage();
  on("coverage", "input", () => {
    showCoverage();
    ask();
  });
  for (const id of ["show-tasks", "show-samples"]) on(id, "change", ask);
  onFile("context", loadReadings);
  document.addEventListener("keydown", (event) => {
    const isField = event.target.matches?.("input:not([type=range], [type=checkbox], [type=radio]), textarea");
    if (!prior || isField || event.shiftKey || !(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "z") return;
    event.preventDefault();
    undo();
  });
  on("add", "click", addInTheMiddle);
  on("undo", "click", undo);
  on("clear", "click", () => {
    focused = null;
    change(() => { task.readings = []; });
  });
  on("save-csv", "click", () => download("predictions.csv"));
  on("save-readings", "click", () => download("readings.csv"));
  on("save-svg", "click", () => pictures().forEach(([svg, name]) => save(asSvg(svg), `${name}.svg`)));
  on("save-png", "click", () => attempt(async () => {
    for (const [svg, name] of pictures()) save(await asPng(svg), `${name}.png`);
  }));
  on("code-details", "toggle", showCode);
  new ResizeObserver(() => { if (dragged === null) draw(); }).observe(byId("charts"));

  return { showPrior, showSlider };
})();
