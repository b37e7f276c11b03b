"use strict";
/* The chart of a new task: predictions along one input, or maps of two, and the readings on top. */
const taskChart = (() => {
  const chart = byId("chart"), second = byId("second");

  const range = (prior, i) => [prior.inputs[i].low, prior.inputs[i].high];
  const axis = (prior, i) => ({ domain: range(prior, i), label: prior.inputs[i].name, dates: prior.inputs[i].dates });

  // Limits of y: about those of the training tasks, and whatever readings and band need beyond them.
  function yDomain({ prior, task, shown }) {
    if (prior.labels) return [0, 1.08];
    const values = task.readings.map((reading) => reading.y / share(prior, task, reading)), [low, high] = limits(prior, task), span = high - low;
    const band = shown?.kind === "curve" ? [...shown.lower, ...shown.upper] : [];
    values.push(...band.map((value) => Math.min(Math.max(value, low - span), high + span)));
    return [Math.min(low, ...values), Math.max(high, ...values)];
  }

  // The server's limits of y are those of a typical exposure; counts are in proportion to theirs.
  function limits(prior, task) {
    const i = prior.inputs.findIndex((each) => each.exposure), [low, high] = prior.y_range;
    if (i < 0 || !(task.fixed[i] > 0) || task.fixed[i] === prior.inputs[i].typical) return [low, high];
    const most = Math.max((high * task.fixed[i]) / prior.inputs[i].typical, 3);
    return [-Math.max(0.6, 0.05 * most), most];
  }

  // The exposure of a reading in units of the chart's, which its count is drawn at.
  function share(prior, task, reading) {
    const i = prior.inputs.findIndex((each) => each.exposure);
    return i >= 0 && reading.x[i] > 0 && task.fixed[i] > 0 ? reading.x[i] / task.fixed[i] : 1;
  }

  // What the inputs are that a chart does not run along: said under it where there are categories, covariates or an exposure.
  function fixedWords(prior, task) {
    const isSaid = prior.inputs.some((each) => each.levels || each.covariate || each.exposure);
    const others = prior.inputs.map((each, i) => [each, i]).filter(([, i]) => i !== task.axis && (task.view !== "map" || i !== task.second));
    if (!isSaid || !others.length) return "";
    const words = others.map(([each, i]) => `${each.name}${each.exposure ? " (exposure)" : ""} ${text(prior, task.fixed[i], i)}`);
    return ` At ${words.join(", ")}.`;
  }

  // Draw {prior, task, shown, tasks, domain}: what the server has predicted, training tasks, and limits of y. Return a frame for each chart,
  // and the places of the readings in it: {i: reading, k: chart, x, y, dot}.
  function draw(view) {
    const { prior, task } = view, isMap = task.view === "map";
    byId("second-figure").hidden = !isMap || prior.labels;
    for (const id of ["coverage-row", "show-row"]) byId(id).hidden = isMap || prior.labels;
    const frames = isMap ? drawMaps(view) : [drawLines(view)];
    for (const f of frames) f.svg.setAttribute("role", "group"); // an image has nothing inside to be focused
    const places = frames.flatMap((f, k) => task.readings.map((reading, i) => drawReading(view, f, reading, i, k)));
    return { frames, places };
  }

  function size(svg, share) {
    const width = Math.min(Math.max(svg.parentElement.clientWidth || 720, 300), 1040);
    return { width, height: Math.max(Math.round(width * share), 260) };
  }

  function drawLines(view) {
    const { prior, task, shown, tasks } = view, label = prior.labels ? "probability" : prior.output;
    const title = `Predictions of ${prior.output} for a new task, from ${task.readings.length} readings`;
    const y = { domain: view.domain, label, whole: Boolean(prior.whole) };
    const f = charts.frame(chart, { ...size(chart, 0.46), title, x: axis(prior, task.axis), y });
    const withTasks = !prior.labels && byId("show-tasks").checked && tasks;
    if (withTasks) charts.tasks(f, tasks);
    if (!shown || shown.kind === "map") return f;
    drawOutside(f, shown);
    if (shown.kind === "probabilities") {
      shown.probabilities.forEach((row, i) => charts.line(f, shown.x, row, `probability ${charts.classOf(i)}`));
      byId("chart-caption").textContent = `Probability of each ${prior.output}. Dots: readings, in the color of their label.${fixedWords(prior, task)}`;
      return f;
    }
    (shown.whole ? charts.steps : charts.band)(f, shown.x, shown.lower, shown.upper);
    const drawn = byId("show-samples").checked ? shown.samples ?? [] : [];
    for (const values of drawn) charts.line(f, shown.sample_x, values, "sample");
    charts.line(f, shown.x, shown.mean, "mean");
    const hasRates = prior.inputs.some((each) => each.exposure), rates = hasRates ? ", their counts at the exposure of the chart" : "";
    const others = task.readings.some((reading) => share(prior, task, reading) !== 1)
      ? " Readings of another exposure are drawn at the same rate." : "";
    const behind = withTasks ? ` Behind: ${prior.n_tasks} training tasks, as ${prior.is_density ? "density" : "lines"}${rates}.` : "";
    const beyond = shown.outside.some(Boolean) ? " Shaded: outside the range of the training tasks." : "";
    const holds = shown.whole ? `Mean, and whole numbers that hold a new reading with a probability of at least ${byId("coverage").value}%.`
      : `Mean and ${byId("coverage").value}% band of a new reading.`;
    const own = prior.has_conformal ? " The band is the model’s own; the conformal interval is not drawn (`metaprior predict --conformal`)." : "";
    byId("chart-caption").textContent = `${holds}${fixedWords(prior, task)}${others}${own}${behind}${beyond}`;
    return f;
  }

  function drawOutside(f, { x, outside }) {
    const half = (f.sx(x[1]) - f.sx(x[0])) / 2;
    outside.forEach((isOutside, i) => {
      const box = { x: f.sx(x[i]) - half, width: 2 * half, y: f.box.y, height: f.box.height };
      if (isOutside) charts.element("rect", { class: "outside", ...box }, f.plot);
    });
  }

  function drawMaps(view) {
    const { prior, task } = view;
    if (prior.labels) return [drawMap(view, chart, "probability", `probability of ${task.classes[task.label]}`)];
    return [drawMap(view, chart, "mean", `mean of ${prior.output}`), drawMap(view, second, "std", "standard deviation")];
  }

  function drawMap({ prior, task, shown }, svg, what, words) {
    const axes = { x: axis(prior, task.axis), y: axis(prior, task.second) };
    const f = charts.frame(svg, { ...size(svg, 0.8), title: `Map: ${words}`, ...axes });
    if (!shown?.[what]) return f;
    const values = shown[what].flat();
    const [low, high] = what === "probability" ? [0, 1] : [Math.min(...values), Math.max(...values)];
    charts.map(f, { x: shown.x, y: shown.y, values: shown[what], low, high });
    const scale = html("span", { className: "scale" });
    scale.style.background = charts.gradient();
    byId(`${svg.id}-caption`).replaceChildren(`${words}: ${charts.number(low)}`, scale, `${charts.number(high)}.${fixedWords(prior, task)}`);
    return f;
  }

  function drawReading({ prior, task }, f, reading, i, k) {
    const x = reading.x[task.axis];
    const y = task.view === "map" ? reading.x[task.second] : prior.labels ? 1 : reading.y / share(prior, task, reading);
    const kind = prior.labels ? `labeled ${charts.classOf(reading.y)}` : "reading";
    const [dot] = charts.points(f, [x], [y], `point ${kind}`, 7, f.svg);
    const value = prior.labels ? task.classes[reading.y] : charts.number(reading.y);
    const at = prior.inputs.map((each, j) => `${each.name} ${text(prior, reading.x[j], j)}`).join(", ");
    dot.setAttribute("tabindex", "0");
    dot.setAttribute("role", "button");
    dot.setAttribute("data-reading", i);
    dot.setAttribute("aria-label", `Reading ${i + 1}: ${at}, ${prior.output} ${value}. Arrows move it, Delete removes it.`);
    return { i, k, x: f.sx(x), y: f.sy(y), dot };
  }

  function text(prior, value, i) {
    const { levels, dates } = prior.inputs[i];
    return levels ? levels[value] : dates ? charts.date(value) : charts.number(value);
  }

  async function asPng(svg) {
    const image = new Image(), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(charts.standalone(svg))}`;
    await image.decode();
    const canvas = html("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  const asSvg = (svg) => new Blob([charts.standalone(svg)], { type: "image/svg+xml" });

  return { chart, second, draw, yDomain, range, share, text, asPng, asSvg };
})();
