"use strict";
(() => {
  const { charts: figures, hovers } = JSON.parse(document.getElementById("figures").textContent);
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

  // A trace holds trials one after the other (reports/packing.py): what is said of each goes to all of its points.
  const unpack = (trace) => {
    const { trials, notes } = trace.meta || {};
    if (!trials) return;
    trace.hovertext = trials.flatMap(([trial, length]) => Array(length).fill(hovers[trial]));
    if (notes) trace.customdata = trials.flatMap(([, length], place) => Array(length).fill(notes[place]));
  };

  // The trace of one trial alone, in front; null where the trace has none of its points.
  const pick = (trace, picked) => {
    let start = 0;
    for (const [trial, length] of trace.meta.trials) {
      if (String(trial) === picked) {
        const cut = (values) => (Array.isArray(values) ? values.slice(start, start + length) : values);
        const alone = { ...trace, meta: { group: trace.meta.group }, opacity: 1 };
        for (const key of ["x", "y", "text", "textposition", "hovertext", "customdata"]) if (key in alone) alone[key] = cut(alone[key]);
        if (alone.marker) alone.marker = { ...alone.marker, color: cut(alone.marker.color) };
        if (alone.error_y) alone.error_y = { ...alone.error_y, array: cut(alone.error_y.array) };
        if (alone.line) alone.line = { ...alone.line, width: Math.max(4, alone.line.width) };
        return alone;
      }
      start += length;
    }
    return null;
  };

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
        unpack(trace);
      }
      if (picked !== "") {
        const packed = figure.data.filter((trace) => trace.meta?.trials);
        const alone = packed.map((trace) => pick(trace, picked)).filter((trace) => trace);
        for (const trace of packed) trace.opacity = 0.15;
        // Drawn last is in front.
        figure.data.push(...alone);
      }
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
