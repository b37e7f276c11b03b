"use strict";
/* Draws the charts of a report, each at the width that it has on the screen. */
(() => {
  const given = JSON.parse(document.getElementById("charts").textContent);
  const HEIGHTS = { tasks: 300, calibration: 380, reliability: 380, prediction: 260, scatter: 280, probabilities: 260 };

  const segment = (f, [x0, y0], [x1, y1], kind) => charts.line(f, [x0, x1], [y0, y1], kind);
  const diagonal = (f) => {
    const low = Math.max(f.x[0], f.y[0]), high = Math.min(f.x[1], f.y[1]);
    segment(f, [low, low], [high, high], "reference");
  };

  const draw = {
    tasks(f, chart) {
      f.svg.classList.add("foreground");
      charts.tasks(f, chart.given);
    },

    calibration(f, { promised, actual, lower, upper, highlight }) {
      diagonal(f);
      if (lower) charts.band(f, promised, lower, upper);
      charts.line(f, promised, actual, "mean");
      charts.points(f, promised, actual, "dot", 3);
      const p = promised[highlight], share = actual[highlight];
      segment(f, [p, 0], [p, share], "reference");
      charts.points(f, [p], [share], "reading", 6);
      const place = { class: "label", x: f.sx(p) - 8, y: f.box.y + f.box.height - 8, "text-anchor": "end" };
      charts.element("text", place, f.plot, `${Math.round(100 * p)}% promised, ${Math.round(100 * share)}% actual`);
    },

    reliability(f, { promised, actual, lower, upper, counts }) {
      diagonal(f);
      promised.forEach((p, i) => segment(f, [p, lower[i]], [p, upper[i]], "error-bar"));
      charts.line(f, promised, actual, "mean");
      const most = Math.max(...counts);
      promised.forEach((p, i) => charts.points(f, [p], [actual[i]], "reading", 3 + 5 * Math.sqrt(counts[i] / most)));
    },

    prediction(f, { grid, mean, lower, upper, given: shown, held_back: heldBack, y }) {
      (y.whole ? charts.steps : charts.band)(f, grid, lower, upper);
      charts.line(f, grid, mean, "mean");
      charts.points(f, heldBack.x, heldBack.y, "held-back", 4);
      charts.points(f, shown.x, shown.y, "reading", 4.5);
    },

    scatter(f, { observed, mean, lower, upper }) {
      diagonal(f);
      observed.forEach((x, i) => segment(f, [x, lower[i]], [x, upper[i]], "whisker"));
      charts.points(f, observed, mean, "held-back", 4);
    },

    probabilities(f, { curves, grid, given: shown, held_back: heldBack }) {
      curves.forEach((curve, i) => charts.line(f, grid, curve, `probability ${charts.classOf(i)}`));
      for (const [part, kind] of [[heldBack, "unlabeled"], [shown, "labeled"]]) {
        part.x.forEach((x, i) => charts.points(f, [x], [part.y[i]], `${kind} ${charts.classOf(part.class[i])}`, 4.5));
      }
    },
  };

  function drawOne(svg) {
    const chart = given[Number(svg.dataset.chart)], width = Math.round(svg.getBoundingClientRect().width);
    if (!width || svg.dataset.width === String(width)) return;
    svg.dataset.width = width;
    if (chart.kind === "candidates") return void charts.candidates(svg, chart.rows, chart.label, width);
    const height = Math.round(Math.min(HEIGHTS[chart.kind], Math.max(0.75 * width, 200)));
    draw[chart.kind](charts.frame(svg, { width, height, title: chart.title, x: chart.x, y: chart.y }), chart);
  }

  const observer = new ResizeObserver((entries) => requestAnimationFrame(() => entries.forEach((e) => drawOne(e.target))));
  for (const svg of document.querySelectorAll("svg[data-chart]")) {
    drawOne(svg);
    observer.observe(svg);
  }
})();
