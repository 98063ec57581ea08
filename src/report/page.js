// Draws the curves of a page over another axis, shows values under the pointer, and hides runs.
// The paths over the steps are in the page; page_curves.cpp draws them in the same way.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const frame = { left: 58, right: 452, top: 12, bottom: 212 };
  const charts = [...document.querySelectorAll("svg.chart")];
  let axis = 0; // index of data.axes
  let unit = { size: 1, name: "steps" }; // of the axis

  const number = (value) => {
    const size = Math.abs(value);
    for (const [limit, part, letter] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
      if (size >= limit && size < 1e15) return Number((value / part).toPrecision(4)) + letter;
    return String(Number(value.toPrecision(4)));
  };
  const ticks = (low, high) => {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * (rough > 5 * power ? 10 : rough > 2 * power ? 5 : rough > power ? 2 : 1);
    const result = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) result.push(i * step);
    return result;
  };
  const curvesOf = (chart) => [...chart.querySelectorAll("path")].map((path) => {
    const { run, track, name, form } = path.dataset;
    const found = data.runs[run].tracks[track];
    return { path, run: Number(run), track: found, values: found.values[name], form };
  });
  const yOf = (chart) => {
    const { low, high, log } = chart.dataset;
    const scaled = (value) => (log === "1" ? Math.log10(value) : value);
    const first = scaled(Number(low)), range = scaled(Number(high)) - first;
    return (value) =>
      frame.bottom + ((scaled(value * Number(chart.dataset.scale)) - first) / range) * (frame.top - frame.bottom);
  };
  const rangeOf = (curves) => {
    let low = Infinity, high = -Infinity;
    for (const { track } of curves)
      for (const value of track[data.axes[axis]])
        if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    for (const run of data.runs)
      for (const mark of run.marks)
        if (mark[axis] !== null) { low = Math.min(low, mark[axis]); high = Math.max(high, mark[axis]); }
    if (low > high) return [0, 1];
    if (low > 0 && low < 0.1 * high) low = 0;
    return low < high ? [low, high] : [low - 1, high + 1];
  };
  const pathOf = (curve, x, y) => {
    const { track, values, form } = curve;
    const places = track[data.axes[axis]], parts = new Set(track.parts);
    const low = values.low || values.mean, high = values.high || values.mean;
    let text = "", draws = false;
    places.forEach((place, i) => {
      if (parts.has(i)) draws = false;
      if (place === null || values.mean[i] === null) return;
      const add = (value) => {
        text += `${draws ? "L" : "M"}${x(place).toFixed(1)} ${y(value).toFixed(1)}`;
        draws = true;
      };
      if (form === "smooth") add(values.smooth[i]);
      else if (form === "dots") text += `M${x(place).toFixed(1)} ${y(values.mean[i]).toFixed(1)}h0`;
      else if (low[i] === high[i]) add(low[i]);
      else for (const value of i % 2 ? [high[i], low[i]] : [low[i], high[i]]) add(value);
    });
    return text;
  };
  const svg = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };

  const draw = (chart) => {
    const curves = curvesOf(chart), [low, high] = rangeOf(curves);
    const x = (value) => frame.left + ((value - low) / (high - low)) * (frame.right - frame.left);
    const y = yOf(chart);
    chart.range = [low, high];
    for (const curve of curves) curve.path.setAttribute("d", pathOf(curve, x, y));
    const group = chart.querySelector(".x-axis");
    group.replaceChildren();
    for (const tick of ticks(low / unit.size, high / unit.size)) {
      const at = x(tick * unit.size).toFixed(1);
      group.append(svg("line", { class: "tick", x1: at, x2: at, y1: frame.bottom, y2: frame.bottom + 4 }));
      group.append(svg("text", { x: at, y: frame.bottom + 17, "text-anchor": "middle" }, number(tick)));
    }
    const middle = (frame.left + frame.right) / 2;
    group.append(svg("text", { x: middle, y: frame.bottom + 33, "text-anchor": "middle" }, unit.name));
    for (const mark of chart.querySelectorAll("line.event")) {
      const at = x(data.runs[mark.dataset.run].marks[mark.dataset.mark][axis] ?? NaN);
      const shows = at >= frame.left && at <= frame.right;
      mark.setAttribute("visibility", shows ? "visible" : "hidden");
      if (shows) { mark.setAttribute("x1", at); mark.setAttribute("x2", at); }
    }
  };
  const chooseAxis = (index) => {
    axis = index;
    unit = { size: 1, name: ["steps", "epochs", "samples", "seconds"][axis] };
    if (data.axes[axis] === "seconds") {
      const longest = Math.max(...charts.map((chart) => rangeOf(curvesOf(chart))[1]));
      if (longest > 7200) unit = { size: 3600, name: "hours" };
      else if (longest > 120) unit = { size: 60, name: "minutes" };
    }
    charts.forEach(draw);
  };

  // The values nearest to the pointer, one line for each curve.
  const isGone = (element) => element.classList.contains("gone");
  const show = (chart, event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 460;
    const [low, high] = chart.range || rangeOf(curvesOf(chart));
    const place = low + ((at - frame.left) / (frame.right - frame.left)) * (high - low);
    const lines = [];
    let nearest = null;
    for (const curve of curvesOf(chart)) {
      if (curve.form !== "raw" || isGone(curve.path)) continue;
      const { track, values } = curve, places = track[data.axes[axis]];
      let best = -1;
      places.forEach((value, i) => {
        if (value === null || values.mean[i] === null) return;
        if (best < 0 || Math.abs(value - place) <= Math.abs(places[best] - place)) best = i;
      });
      // Evaluations may be far from the pointer.
      const isFar = Math.abs(places[best] - place) > 0.04 * (high - low);
      if (best < 0 || (isFar && curve.path.dataset.track !== "train")) continue;
      if (nearest === null || Math.abs(places[best] - place) < Math.abs(nearest.place - place))
        nearest = { place: places[best], step: track.step[best] };
      const text = (value) => number(value * Number(chart.dataset.scale));
      const range = values.low && values.low[best] !== values.high[best]
        ? ` (${text(values.low[best])} to ${text(values.high[best])})` : "";
      const set = curve.path.dataset.track === "train" ? "" : ` ${curve.path.dataset.track.replace("evaluate ", "")}`;
      const name = data.runs.length > 1 ? data.runs[curve.run].name : curve.path.dataset.name;
      lines.push(`${name}${set}: ${text(values.mean[best])}${range} ${chart.dataset.unit}`.trim());
    }
    const figure = chart.parentElement;
    let tip = figure.querySelector(".tip"), cursor = chart.querySelector(".cursor");
    if (nearest === null) return;
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "tip";
      figure.append(tip);
      cursor = svg("line", { class: "cursor", y1: frame.top, y2: frame.bottom });
      chart.append(cursor);
    }
    const where = axis === 0 ? "" : `${number(nearest.place / unit.size)} ${unit.name}, `;
    tip.textContent = [`${where}step ${nearest.step}`, ...lines].join("\n");
    const x = frame.left + ((nearest.place - low) / (high - low)) * (frame.right - frame.left);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const right = (x / 460) * box.width + 12;
    const fits = right + tip.offsetWidth < box.width;
    tip.style.left = `${fits ? right : Math.max(0, (x / 460) * box.width - 12 - tip.offsetWidth)}px`;
    tip.style.top = `${box.top - figure.getBoundingClientRect().top + 8}px`;
  };
  const hide = (chart) => {
    chart.parentElement.querySelector(".tip")?.remove();
    chart.querySelector(".cursor")?.remove();
  };
  for (const chart of charts) {
    chart.addEventListener("pointermove", (event) => show(chart, event));
    chart.addEventListener("pointerdown", (event) => show(chart, event));
    chart.addEventListener("pointerleave", () => hide(chart));
  }

  document.querySelectorAll("input[name=axis]").forEach((input, index) =>
    input.addEventListener("change", () => { charts.forEach(hide); chooseAxis(index); }));
  for (const input of document.querySelectorAll("input[data-hides]"))
    input.addEventListener("change", () => document.body.classList.toggle(input.dataset.hides, !input.checked));
  for (const input of document.querySelectorAll("input[data-shows]"))
    input.addEventListener("change", () => {
      for (const element of document.querySelectorAll(`svg [data-run="${input.dataset.shows}"]`))
        element.classList.toggle("gone", !input.checked);
    });
  document.querySelector(".controls").hidden = false;
})();
