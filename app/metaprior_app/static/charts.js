"use strict";
/* Charts as SVG, for the page and for reports. Styles are classes of style.css. */
const charts = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const DAY = 864e5; // milliseconds; dates are days since 1970
  const N_CLASS_COLORS = 6;

  function element(name, attributes = {}, parent = null, text = null) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== null) made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function clear(svg, width, height, title) {
    svg.replaceChildren(element("title", {}, null, title));
    const given = { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title };
    for (const [name, value] of Object.entries(given)) svg.setAttribute(name, value);
  }

  // Round values that cover [low, high], about `count` of them.
  function ticks(low, high, count = 5) {
    if (!(high > low)) return [low];
    const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9), found = [];
    for (let i = first; i <= last; i++) found.push(Number((i * step).toPrecision(12)));
    return found;
  }

  function number(value) {
    if (value === null || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2).replace(/\.?0+e/, "e");
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
  }

  function date(days) {
    const moment = new Date(days * DAY);
    if (Number.isNaN(moment.getTime())) return number(days);
    const text = moment.toISOString();
    return Math.abs(days - Math.round(days)) < 1e-6 ? text.slice(0, 10) : text.slice(0, 16).replace("T", " ");
  }

  const shown = (axis) => (axis.dates ? date : number);

  // Draw axes into an emptied svg; return scales, their inverses and the group for what lies inside.
  // options: {width, height, title, x: {domain, label, dates}, y: {domain, label, dates, whole}, left}
  function frame(svg, options) {
    const { width = 720, height = 400, x, y } = options;
    const left = options.left ?? 56, right = 14, top = 12, bottom = 44;
    clear(svg, width, height, options.title);
    const [x0, x1] = padded(x.domain), [y0, y1] = padded(y.domain);
    const sx = (value) => left + ((value - x0) / (x1 - x0)) * (width - left - right);
    const sy = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - bottom - top);
    const ix = (pixel) => x0 + ((pixel - left) / (width - left - right)) * (x1 - x0);
    const iy = (pixel) => y0 + ((height - bottom - pixel) / (height - bottom - top)) * (y1 - y0);
    const axes = element("g", { "aria-hidden": "true" }, svg);
    for (const value of ticks(x0, x1, width < 420 || x.dates ? 4 : 7)) {
      element("line", { class: "gridline", x1: sx(value), x2: sx(value), y1: top, y2: height - bottom }, axes);
      element("text", { x: sx(value), y: height - bottom + 16, "text-anchor": "middle" }, axes, shown(x)(value));
    }
    for (const value of ticks(y0, y1, 5).filter((each) => !y.whole || Number.isInteger(each))) {
      element("line", { class: "gridline", x1: left, x2: width - right, y1: sy(value), y2: sy(value) }, axes);
      element("text", { x: left - 6, y: sy(value) + 4, "text-anchor": "end" }, axes, shown(y)(value));
    }
    element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }, axes);
    const middle = (left + width - right) / 2;
    element("text", { class: "label", x: middle, y: height - 8, "text-anchor": "middle" }, axes, clip(x.label, 60));
    const turned = `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`;
    element("text", { class: "label", transform: turned, "text-anchor": "middle" }, axes, clip(y.label, 40));
    const id = `clip${frame.count = (frame.count ?? 0) + 1}`;
    const box = { x: left, y: top, width: width - left - right, height: height - top - bottom };
    element("rect", box, element("clipPath", { id }, element("defs", {}, svg)));
    const plot = element("g", { "clip-path": `url(#${id})` }, svg);
    return { svg, plot, sx, sy, ix, iy, box, x: [x0, x1], y: [y0, y1] };
  }

  function padded([low, high]) {
    if (high > low) return [low, high];
    const around = Math.abs(low) * 0.01 || 1;
    return [low - around, high + around];
  }

  function clip(text, most) {
    const words = String(text ?? "");
    return words.length > most ? `${words.slice(0, most - 1)}…` : words;
  }

  const path = (f, xs, ys) => xs.map((x, i) => `${i ? "L" : "M"}${f.sx(x).toFixed(1)} ${f.sy(ys[i]).toFixed(1)}`).join("");

  function line(f, xs, ys, kind, parent = f.plot) {
    return element("path", { class: kind, d: path(f, xs, ys) }, parent);
  }

  function band(f, xs, lower, upper, kind = "band", parent = f.plot) {
    const there = path(f, xs, upper), back = path(f, [...xs].reverse(), [...lower].reverse()).replace("M", "L");
    return element("path", { class: kind, d: `${there}${back}Z` }, parent);
  }

  // A band of whole numbers, from `lower` to `upper`: its edges are steps, half a unit beyond the numbers that it holds.
  function steps(f, xs, lower, upper, kind = "band", parent = f.plot) {
    const edge = (i) => (i === 0 ? xs[0] : i === xs.length ? xs[i - 1] : (xs[i - 1] + xs[i]) / 2);
    const around = (values) => values.flatMap((value) => [value, value]);
    const places = xs.flatMap((_, i) => [edge(i), edge(i + 1)]);
    return band(f, places, around(lower).map((each) => each - 0.5), around(upper).map((each) => each + 0.5), kind, parent);
  }

  function points(f, xs, ys, kind, radius = 4.5, parent = f.plot) {
    return xs.map((x, i) => element("circle", { class: kind, cx: f.sx(x), cy: f.sy(ys[i]), r: radius }, parent));
  }

  // Many tasks as shares of the cells of a grid: {x: [low, high], y: [low, high], counts: rows from low y to high}.
  function density(f, { x, y, counts }, parent = f.plot) {
    const most = Math.max(...counts.flat(), 1), width = (x[1] - x[0]) / counts[0].length;
    const height = (y[1] - y[0]) / counts.length, group = element("g", { class: "dense" }, parent);
    counts.forEach((row, j) => row.forEach((count, i) => {
      if (!count) return;
      const left = f.sx(x[0] + i * width), top = f.sy(y[0] + (j + 1) * height);
      const size = { width: f.sx(x[0] + (i + 1) * width) - left, height: f.sy(y[0] + j * height) - top };
      element("rect", { x: left, y: top, ...size, "fill-opacity": (0.4 * Math.sqrt(count / most)).toFixed(3) }, group);
    }));
  }

  // Training tasks: lines of few, or a density of many.
  function tasks(f, given) {
    if (!given) return;
    if (given.counts) return void density(f, given);
    for (const task of given.tasks) {
      if (task.x.length > 1) line(f, task.x, task.y, "task");
      points(f, task.x, task.y, "task-dot", 1.6);
    }
  }

  const classOf = (i) => `class${i % N_CLASS_COLORS}`;

  // Values on a grid as an image: rows from low y to high. Colors go from the page's surface to its accent.
  function map(f, { x, y, values, low, high }, parent = f.plot) {
    const canvas = document.createElement("canvas"), span = high - low || 1;
    canvas.width = values[0].length;
    canvas.height = values.length;
    const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
    values.forEach((row, j) => row.forEach((value, i) => {
      const at = 4 * ((values.length - 1 - j) * canvas.width + i);
      image.data.set([...color((value - low) / span), 255], at);
    }));
    context.putImageData(image, 0, 0);
    const left = f.sx(x[0]), top = f.sy(y[1]);
    const size = { width: f.sx(x[1]) - left, height: f.sy(y[0]) - top };
    element("image", { x: left, y: top, ...size, href: canvas.toDataURL(), preserveAspectRatio: "none" }, parent);
  }

  // A sequence of colors that is readable without seeing hues: its lightness rises evenly (cividis, coarsely).
  const STOPS = [[0, 34, 78], [59, 73, 108], [112, 113, 115], [165, 156, 116], [219, 203, 94], [254, 232, 56]];
  function color(share) {
    const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1), i = Math.min(Math.floor(at), STOPS.length - 2);
    return STOPS[i].map((value, k) => Math.round(value + (at - i) * (STOPS[i + 1][k] - value)));
  }

  // A bar of the colors of `map`, for CSS.
  const gradient = () => `linear-gradient(to right, ${STOPS.map((stop) => `rgb(${stop})`).join(", ")})`;

  // Candidates of a transfer report, one row each: {label, value, error, weight}; values are gains or scores. On a
  // narrow screen labels stand above their rows.
  function candidates(svg, rows, label, width = 720) {
    const spread = rows.filter((row) => Number.isFinite(row.value));
    const ends = spread.flatMap((row) => [row.value - (row.error || 0), row.value + (row.error || 0)]);
    const low = Math.min(0, ...ends), high = Math.max(0, ...ends), room = (high - low) * 0.06 || 0.1;
    const narrow = width < 560, step = narrow ? 44 : 26, first = narrow ? 52 : 34;
    const height = first + 28 + step * rows.length, left = narrow ? 8 : 190, right = 90;
    clear(svg, width, height, `${label} of ${rows.length} settings, with their weights`);
    const sx = (value) => left + ((value - low + room) / (high - low + 2 * room)) * (width - left - right);
    for (const value of ticks(low, high, narrow ? 3 : 5)) {
      const kind = value === 0 ? "reference" : "gridline";
      element("line", { class: kind, x1: sx(value), x2: sx(value), y1: 20, y2: height - 40 }, svg);
      element("text", { x: sx(value), y: height - 24, "text-anchor": "middle" }, svg, number(value));
    }
    const middle = (left + width - right) / 2;
    element("text", { class: "label", x: middle, y: height - 6, "text-anchor": "middle" }, svg, label);
    element("text", { x: width - 6, y: 12, "text-anchor": "end" }, svg, "weight");
    rows.forEach((row, i) => {
      const y = first + step * i;
      const above = narrow ? { x: left, y: y - 14 } : { x: left - 8, y: y + 4, "text-anchor": "end" };
      element("text", { class: "label", ...above }, svg, clip(row.label, narrow ? 36 : 30));
      element("rect", { class: "bar", x: width - right + 12, y: y - 7, width: 40 * row.weight, height: 14 }, svg);
      element("text", { x: width - 6, y: y + 4, "text-anchor": "end" }, svg, row.weight ? row.weight.toFixed(2) : "–");
      if (!Number.isFinite(row.value)) return;
      const from = sx(row.value - (row.error || 0)), to = sx(row.value + (row.error || 0));
      element("line", { class: "error-bar", x1: from, x2: to, y1: y, y2: y }, svg);
      element("circle", { class: "dot", cx: sx(row.value), cy: y, r: 4 }, svg);
    });
  }

  // A copy of a chart that needs no style sheet.
  function standalone(svg) {
    const copy = svg.cloneNode(true), kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity",
      "stroke-dasharray", "font", "text-anchor"];
    const originals = [svg, ...svg.querySelectorAll("*")], copies = [copy, ...copy.querySelectorAll("*")];
    originals.forEach((original, i) => {
      const style = getComputedStyle(original);
      for (const name of kept) copies[i].style.setProperty(name, style.getPropertyValue(name));
      for (const name of ["tabindex", "role", "aria-label"]) copies[i].removeAttribute(name);
    });
    const [, , width, height] = svg.getAttribute("viewBox").split(" ");
    copy.setAttribute("width", width);
    copy.setAttribute("height", height);
    copy.prepend(element("rect", { width, height, fill: getComputedStyle(svg.closest(".panel")).backgroundColor }));
    copy.setAttribute("xmlns", NS);
    return new XMLSerializer().serializeToString(copy);
  }

  return { element, number, date, frame, line, band, steps, points, tasks, classOf, map, gradient, candidates, standalone, clip };
})();
