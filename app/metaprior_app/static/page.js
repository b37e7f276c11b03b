"use strict";
/* The page: what the server has, and which panels show it. */
const page = (() => {
  const FAST = 250, SLOW = 2000; // milliseconds from one look at the server to the next
  let state = null, timer = null;

  // Run something that asks the server; show what goes wrong. Whoever is out of date is brought up to date.
  async function attempt(action) {
    try {
      byId("messages").replaceChildren();
      return await action();
    } catch (error) {
      say(error.message);
      if (error.status === 409) await refresh().catch(() => {});
      return null;
    }
  }

  function show(given) {
    const before = state;
    state = given;
    document.title = state.prior ? `${state.prior.name} – metaprior` : "metaprior";
    if (!before || before.table?.revision !== state.table?.revision) fitPanel.showTable(state.table);
    if (before?.prior?.revision !== state.prior?.revision) {
      fitPanel.showPrior(state.prior);
      newTask.showPrior(state.prior);
      if (before && state.prior) byId("transfer-panel").scrollIntoView();
      if (before?.prior && state.prior && !fitPanel.isMine()) say("The prior was replaced in another tab; this is the new one.", "note");
    }
    showProgress(state);
    byId("export-panel").hidden = !state.prior;
    watch();
  }

  function showProgress(progress) {
    fitPanel.showFit(progress.fit);
    newTask.showSlider(progress.slider, progress.slider_left);
    byId("open-report").hidden = !progress.has_report;
    byId("report-row").hidden = !state.prior?.fitted_here;
    byId("make-report").disabled = progress.fit?.status === "running";
  }

  async function refresh() {
    show(await server.get("api/state"));
  }

  // Look again soon while something runs, seldom otherwise: another tab may have changed what there is.
  function watch() {
    clearTimeout(timer);
    const isBusy = state.fit?.status === "running" || state.slider_left > 0;
    timer = setTimeout(look, isBusy ? FAST : SLOW);
  }

  async function look() {
    try {
      const progress = await server.get("api/progress");
      if (progress.revision !== state.revision) return void (await refresh());
      Object.assign(state, progress);
      showProgress(progress);
    } catch (error) {
      if (error.status === 0) say(error.message);
    }
    watch();
  }

  return { attempt, show, refresh, get state() { return state; }, watch };
})();

(() => {
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(byId(button.dataset.copy).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }
  // A file that is dropped beside the field must not replace the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  page.attempt(page.refresh);
})();
