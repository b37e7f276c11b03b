// Typeset formulas with KaTeX, which is loaded from this folder on pages that have any.
(() => {
  const formulas = document.querySelectorAll(".arithmatex");
  if (!formulas.length) return;
  const folder = document.currentScript.src.replace(/[^/]*$/, "");
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = folder + "katex.min.css";
  const script = document.createElement("script");
  script.src = folder + "katex.min.js";
  script.onload = () => {
    for (const formula of formulas) {
      // arithmatex writes \\(...\\) within a line and \\[...\\] for a formula of its own.
      const text = formula.textContent.trim();
      katex.render(text.slice(2, -2), formula, { displayMode: text.startsWith("\\["), throwOnError: false });
    }
  };
  document.head.append(style, script);
})();
