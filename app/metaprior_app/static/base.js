"use strict";
/* Requests to the server behind the page, and pieces of HTML. */
const byId = (id) => document.getElementById(id);

const server = (() => {
  async function send(path, options = {}) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw Object.assign(new Error("The server does not answer. Has `metaprior app` ended?"), { status: 0 });
    }
    if (response.ok) return response;
    const { error } = await response.json().catch(() => ({ error: `The server answers ${response.status}.` }));
    throw Object.assign(new Error(error), { status: response.status });
  }
  const post = (path, body) => send(path, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  return {
    get: async (path) => (await send(path)).json(),
    post: async (path, body = {}) => (await post(path, body)).json(),
    file: async (path, body) => (await post(path, body)).blob(),
    upload: async (path, file) => (await send(`${path}?name=${encodeURIComponent(file.name)}`, {
      method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: file,
    })).json(),
  };
})();

// Make an HTML element: properties, then children (text or elements).
function html(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key in made && key !== "list") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function say(message, kind = "error") {
  const close = html("button", { type: "button", ariaLabel: "Close this message" }, "×");
  const shown = html("div", { className: kind }, html("span", {}, message), close);
  close.addEventListener("click", () => shown.remove());
  byId("messages").replaceChildren(shown);
}

function save(blob, name) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
