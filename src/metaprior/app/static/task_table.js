"use strict";
/* The readings of a new task as a table to type into, and fields for numbers and dates. */
const taskTable = (() => {
  const DAY = 864e5; // milliseconds

  // Days since 1970 of a date such as 2026-01-31 or 2026-01-31 12:30, in UTC.
  function parseDate(words) {
    const plain = words.trim().replace(" ", "T");
    return Date.parse(plain.includes(":") && !plain.endsWith("Z") ? `${plain}Z` : plain) / DAY;
  }

  // A field; `set` takes the value that was typed, `refuse` is called where it is none.
  function field(value, label, isDate, set, refuse) {
    const words = isDate ? charts.date(value) : String(Number(value.toPrecision(7)));
    const made = html("input", { type: "text", inputMode: isDate ? "text" : "decimal", value: words, ariaLabel: label });
    made.addEventListener("change", () => {
      const given = isDate ? parseDate(made.value) : Number(made.value.trim().replace(",", ".") || NaN);
      if (Number.isFinite(given)) return set(given);
      say(`${label} must be a ${isDate ? "date, such as 2026-01-31" : "number"}; got “${made.value}”.`);
      refuse();
    });
    return made;
  }

  // Show readings; `change(how)` runs a change of them, `remove(i)` removes one, `refuse` shows the table again.
  function show({ prior, task }, { change, remove, refuse }) {
    const names = ["#", ...prior.inputs.map((each) => each.name), prior.output, "remove"];
    const head = html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name)));
    const rows = task.readings.map((reading, i) => {
      const cells = prior.inputs.map((each, j) => field(reading.x[j], `${each.name} of reading ${i + 1}`, each.dates,
        (value) => change(() => { reading.x[j] = value; }, false), refuse));
      const button = html("button", { type: "button", ariaLabel: `Remove reading ${i + 1}` }, "×");
      button.addEventListener("click", () => remove(i));
      const all = [...cells, output(prior, task, reading, i, change, refuse), button];
      return html("tr", {}, html("th", { scope: "row" }, String(i + 1)), ...all.map((each) => html("td", {}, each)));
    });
    const none = html("td", { colSpan: names.length, className: "muted" }, "none: predictions come from the prior alone");
    const body = html("tbody", {}, ...(rows.length ? rows : [html("tr", {}, none)]));
    byId("readings").replaceChildren(byId("readings").caption, html("thead", {}, head), body);
  }

  function output(prior, task, reading, i, change, refuse) {
    const label = `${prior.output} of reading ${i + 1}`, set = (value) => change(() => { reading.y = value; }, false);
    if (!prior.labels) return field(reading.y, label, false, set, refuse);
    const select = html("select", { ariaLabel: label }, ...task.classes.map((name, k) => html("option", { value: k }, name)));
    select.value = reading.y;
    select.addEventListener("change", () => set(Number(select.value)));
    return select;
  }

  return { field, show };
})();
