"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const charts = [...document.querySelectorAll(".chart")];
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  const smoothBox = document.getElementById("smooth");
  const highlightBox = document.getElementById("highlight");

  // Colours are names of CSS variables, so that the charts follow the theme of the page.
  const themed = (value, css) => {
    if (typeof value === "string") {
      const name = /^var\((--[\w-]+)\)$/.exec(value);
      return name ? css.getPropertyValue(name[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((item) => themed(item, css));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, themed(item, css)]));
    }
    return value;
  };

  const hiddenGroups = () => new Set(
    [...document.querySelectorAll("input[data-group]")].filter((box) => !box.checked).map((box) => box.dataset.group));

  const draw = () => {
    const css = getComputedStyle(document.documentElement);
    const hidden = hiddenGroups();
    const picked = highlightBox ? highlightBox.value : "";
    const narrow = window.innerWidth < 640;
    for (const chart of charts) {
      const figure = themed(figures[chart.dataset.chart], css);
      for (const trace of figure.data) {
        const meta = trace.meta || {};
        if (hidden.has(meta.group)) trace.visible = false;
        if (meta.smoothed && smoothBox.checked) trace.y = meta.smoothed;
        if (picked !== "" && meta.trial !== undefined) {
          const isPicked = String(meta.trial) === picked;
          trace.opacity = isPicked ? 1 : 0.15;
          if (isPicked && trace.line) trace.line.width = Math.max(4, trace.line.width);
        }
      }
      // Drawn last is in front.
      if (picked !== "") figure.data.sort((a, b) => Number(String(a.meta?.trial) === picked) - Number(String(b.meta?.trial) === picked));
      if (narrow) figure.layout.font.size = 11;
      Plotly.react(chart, figure.data, figure.layout, config);
    }
  };

  const sortBy = (table, column, direction) => {
    const key = (row) => {
      const cell = row.cells[column];
      const text = cell.dataset.value ?? cell.textContent.trim();
      const number = Number(text);
      return text === "" ? null : Number.isNaN(number) ? text : number;
    };
    const order = (a, b) => {
      const [one, other] = [key(a), key(b)];
      if (one === null || other === null) return (one === null) - (other === null);
      const difference = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
      return direction * difference;
    };
    const body = table.tBodies[0];
    [...body.rows].sort(order).forEach((row) => body.append(row));
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      const sort = () => {
        const descending = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sortBy(table, column, descending ? -1 : 1);
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
    });
  }

  document.querySelectorAll("input[data-group]").forEach((box) => box.addEventListener("change", draw));
  if (smoothBox) smoothBox.addEventListener("change", draw);
  if (highlightBox) highlightBox.addEventListener("change", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
