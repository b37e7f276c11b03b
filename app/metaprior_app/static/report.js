"use strict";
/* Draws the charts of a report, each at the width that it has on the screen. */
(() => {
  const given = JSON.parse(document.getElementById("charts").textContent);
  const UNIT = { domain: [0, 1], dates: false };

  function diagonal(f, low, high) {
    charts.line(f, [low, high], [low, high], "reference");
  }

  function bars(f, xs, lower, upper) {
    xs.forEach((x, i) => charts.line(f, [x, x], [lower[i], upper[i]], "error-bar"));
  }

  const draw = {
    tasks(svg, chart, width) {
      const f = charts.frame(svg, { width, height: height(width, 300), title: chart.title, x: chart.x, y: chart.y });
      svg.classList.add("foreground");
      charts.tasks(f, chart.given);
    },

    candidates(svg, chart, width) {
      charts.candidates(svg, chart.rows, chart.label, width);
    },

    calibration(svg, chart, width) {
      const x = { ...UNIT, label: "coverage promised" }, y = { ...UNIT, label: "actual coverage" };
      const f = charts.frame(svg, { width, height: height(width, 380), title: chart.title, x, y });
      diagonal(f, 0, 1);
      if (chart.lower) charts.band(f, chart.promised, chart.lower, chart.upper);
      charts.line(f, chart.promised, chart.actual, "mean");
      charts.points(f, chart.promised, chart.actual, "dot", 3);
      const at = chart.highlight, end = f.sx(chart.promised[at]) - 8, bottom = f.box.y + f.box.height - 8;
      charts.line(f, [chart.promised[at], chart.promised[at]], [0, chart.actual[at]], "reference");
      charts.points(f, [chart.promised[at]], [chart.actual[at]], "reading", 6);
      const words = `${Math.round(100 * chart.promised[at])}% promised, ${Math.round(100 * chart.actual[at])}% actual`;
      charts.element("text", { class: "label", x: end, y: bottom, "text-anchor": "end" }, f.plot, words);
    },

    reliability(svg, chart, width) {
      const low = Math.min(chart.least, ...chart.lower) - 0.03, most = Math.max(...chart.counts);
      const x = { domain: [chart.least - 0.03, 1.03], label: "probability of the predicted label" };
      const y = { domain: [Math.max(low, -0.03), 1.03], label: "how often it was right" };
      const f = charts.frame(svg, { width, height: height(width, 380), title: chart.title, x, y });
      diagonal(f, 0, 1);
      bars(f, chart.promised, chart.lower, chart.upper);
      charts.line(f, chart.promised, chart.actual, "mean");
      chart.promised.forEach((p, i) => {
        charts.points(f, [p], [chart.actual[i]], "reading", 3 + 5 * Math.sqrt(chart.counts[i] / most));
      });
    },

    prediction(svg, chart, width) {
      const f = charts.frame(svg, { width, height: height(width, 260), title: chart.title, x: chart.x, y: chart.y });
      (chart.y.whole ? charts.steps : charts.band)(f, chart.grid, chart.lower, chart.upper);
      charts.line(f, chart.grid, chart.mean, "mean");
      charts.points(f, chart.held_back.x, chart.held_back.y, "held-back", 4);
      charts.points(f, chart.given.x, chart.given.y, "reading", 4.5);
    },

    scatter(svg, chart, width) {
      const f = charts.frame(svg, { width, height: height(width, 280), title: chart.title, x: chart.x, y: chart.y });
      diagonal(f, Math.max(f.x[0], f.y[0]), Math.min(f.x[1], f.y[1]));
      chart.observed.forEach((x, i) => charts.line(f, [x, x], [chart.lower[i], chart.upper[i]], "whisker"));
      charts.points(f, chart.observed, chart.mean, "held-back", 4);
    },

    probabilities(svg, chart, width) {
      const f = charts.frame(svg, { width, height: height(width, 260), title: chart.title, x: chart.x, y: chart.y });
      chart.curves.forEach((curve, i) => charts.line(f, chart.grid, curve, `probability ${charts.classOf(i)}`));
      const dots = (part, kind) => part.x.forEach((x, i) => {
        charts.points(f, [x], [part.y[i]], `${kind} ${charts.classOf(part.class[i])}`, 4.5);
      });
      dots(chart.held_back, "unlabeled");
      dots(chart.given, "labeled");
      legend(svg, chart.classes);
    },
  };

  const height = (width, most) => Math.round(Math.min(most, Math.max(0.75 * width, 200)));

  function legend(svg, names) {
    let list = svg.parentNode.querySelector(".legend");
    if (list) return;
    list = document.createElement("ul");
    list.className = "legend";
    names.forEach((name, i) => {
      const entry = document.createElement("li"), swatch = document.createElement("span");
      swatch.className = `swatch ${charts.classOf(i)}`;
      entry.append(swatch, charts.clip(name, 40));
      list.append(entry);
    });
    svg.after(list);
  }

  function drawOne(svg) {
    const chart = given[Number(svg.dataset.chart)], width = Math.round(svg.getBoundingClientRect().width);
    if (!width || svg.dataset.width === String(width)) return;
    svg.dataset.width = width;
    draw[chart.kind](svg, chart, width);
  }

  const observer = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((e) => drawOne(e.target))));
  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    drawOne(svg);
    observer.observe(svg);
  }
})();
