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

  // A choice among the levels of a category, which are numbers to the server.
  function choice(value, label, names, set) {
    const select = html("select", { ariaLabel: label }, ...names.map((name, k) => html("option", { value: k }, name)));
    select.value = value;
    select.addEventListener("change", () => set(Number(select.value)));
    return select;
  }

  // A field for a value of an input: a number, a date or a level.
  function input(each, value, label, set, refuse) {
    return each.levels ? choice(value, label, each.levels, set) : field(value, label, each.dates, set, refuse);
  }

  // Show readings; `change(how)` runs a change of them, `remove(i)` removes one, `refuse` shows the table again.
  function show({ prior, task }, { change, remove, refuse }) {
    const own = prior.inputs.map((each, j) => [each, j]).filter(([each]) => !each.covariate); // which are those of the task
    const names = ["#", ...own.map(([each]) => each.name), prior.output, "remove"];
    const head = html("tr", {}, ...names.map((name) => html("th", { scope: "col" }, name)));
    const rows = task.readings.map((reading, i) => {
      const cells = own.map(([each, j]) => input(each, reading.x[j], `${each.name} of reading ${i + 1}`,
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
    if (prior.labels) return choice(reading.y, label, task.classes, set);
    return field(reading.y, label, false, (value) => {
      if (possible(prior, value) === value) return set(value);
      const { lowest, highest } = prior.whole, ends = highest < 1e9 ? ` from ${lowest} to ${highest}` : `, ${lowest} or more`;
      say(`${label} must be a whole number${ends}; got ${value}.`);
      refuse();
    }, refuse);
  }

  // The nearest value that the output can have: of counts and ranks a whole number.
  function possible(prior, y) {
    return prior.whole ? Math.min(Math.max(Math.round(y), prior.whole.lowest), prior.whole.highest) : y;
  }

  return { input, show, possible };
})();
