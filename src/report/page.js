// Draws the curves of a page over another axis, shows values under the pointer, and hides runs.
// The paths over the steps are in the page, and are kept; page_curves.cpp draws them.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const frame = { left: 58, right: 436, top: 12, bottom: 212 };
  const charts = [...document.querySelectorAll("svg.plot")];
  let axis = 0; // index of data.axes
  let unit = { size: 1, name: "steps" }; // of the axis

  const number = (value, digits = 4) => {
    const rounded = Number(value.toPrecision(digits)), size = Math.abs(rounded);
    const units = [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"]];
    for (const [limit, part, letter] of units)
      if (size >= limit && size < 1e15)
        return Number((rounded / part).toPrecision(digits)) + letter;
    return String(rounded);
  };
  // As many digits as the labels need to differ.
  const labels = (values) => {
    for (let digits = 4; ; ++digits) {
      const texts = values.map((value) => number(value, digits));
      if (digits === 15 || texts.every((text, i) => i === 0 || text !== texts[i - 1])) return texts;
    }
  };
  // Long names are told apart by their ends.
  const short = (text) => (text.length > 24 ? "\u2026" + text.slice(-23) : text);
  const ticks = (low, high) => {
    const rough = (high - low) / 5, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * (rough > 5 * power ? 10 : rough > 2 * power ? 5 : rough > power ? 2 : 1);
    const result = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i)
      result.push(i * step);
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
    const scale = Number(chart.dataset.scale), height = frame.top - frame.bottom;
    return (value) => frame.bottom + ((scaled(value * scale) - first) / range) * height;
  };
  const rangeOf = (curves) => {
    let low = Infinity, high = -Infinity;
    for (const { track } of curves)
      for (const value of track[data.axes[axis]])
        if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    for (const run of data.runs)
      for (const { [axis]: value } of run.marks)
        if (value !== null) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return [0, 1];
    if (low > 0 && low < 0.1 * high) low = 0;
    const margin = 0.1 * Math.max(Math.abs(low), Math.abs(high)) || 1;
    return high - low > 1e-8 * margin ? [low, high] : [low - margin, high + margin];
  };
  const pathOf = (curve, x, y) => {
    const { track, values, form } = curve;
    const places = track[data.axes[axis]], parts = new Set(track.parts);
    const low = values.low || values.mean, high = values.high || values.mean;
    let text = "", draws = false;
    places.forEach((place, i) => {
      if (parts.has(i) || values.mean[i] === null) draws = false;
      if (place === null || values.mean[i] === null) return;
      const add = (value) => {
        const at = x(place), pixel = y(value), isDot = form === "dots";
        if (!Number.isFinite(at) || !Number.isFinite(pixel)) return;
        text += `${draws && !isDot ? "L" : "M"}${at.toFixed(1)} ${pixel.toFixed(1)}`;
        if (isDot) text += "h0";
        draws = true;
      };
      if (form === "smooth") add(values.smooth[i]);
      else if (form === "dots") add(values.mean[i]);
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

  // The paths, ticks and marks over the steps, as the program has drawn them.
  const drawn = charts.map((chart) => ({
    paths: [...chart.querySelectorAll("path")].map((path) => path.getAttribute("d")),
    ticks: [...chart.querySelector(".x-axis").children],
    marks: [...chart.querySelectorAll("line.event")].map((mark) => mark.getAttribute("x1")),
  }));
  const placeMark = (mark, at) => {
    const shows = at >= frame.left && at <= frame.right;
    mark.setAttribute("visibility", shows ? "visible" : "hidden");
    if (shows) for (const key of ["x1", "x2"]) mark.setAttribute(key, at);
  };
  const restore = (chart, index) => {
    const { paths, ticks: elements, marks } = drawn[index];
    chart.range = undefined;
    chart.querySelectorAll("path").forEach((path, i) => path.setAttribute("d", paths[i]));
    chart.querySelector(".x-axis").replaceChildren(...elements);
    chart.querySelectorAll("line.event").forEach((mark, i) => placeMark(mark, marks[i]));
  };
  const draw = (chart) => {
    const curves = curvesOf(chart), [low, high] = rangeOf(curves);
    const x = (value) => frame.left + ((value - low) / (high - low)) * (frame.right - frame.left);
    const y = yOf(chart);
    chart.range = [low, high];
    for (const curve of curves) curve.path.setAttribute("d", pathOf(curve, x, y));
    const group = chart.querySelector(".x-axis"), { bottom } = frame;
    group.replaceChildren();
    const values = ticks(low / unit.size, high / unit.size), texts = labels(values);
    values.forEach((value, i) => {
      const at = x(value * unit.size).toFixed(1);
      group.append(svg("line", { class: "tick", x1: at, x2: at, y1: bottom, y2: bottom + 4 }));
      group.append(svg("text", { x: at, y: bottom + 17, "text-anchor": "middle" }, texts[i]));
    });
    const middle = (frame.left + frame.right) / 2;
    group.append(svg("text", { x: middle, y: bottom + 33, "text-anchor": "middle" }, unit.name));
    for (const mark of chart.querySelectorAll("line.event"))
      placeMark(mark, x(data.runs[mark.dataset.run].marks[mark.dataset.mark][axis] ?? NaN));
  };
  const chooseAxis = (index) => {
    axis = index;
    unit = { size: 1, name: ["steps", "epochs", "samples", "seconds"][axis] };
    if (data.axes[axis] === "seconds") {
      const longest = Math.max(...charts.map((chart) => rangeOf(curvesOf(chart))[1]));
      if (longest > 7200) unit = { size: 3600, name: "hours" };
      else if (longest > 120) unit = { size: 60, name: "minutes" };
    }
    charts.forEach(axis === 0 ? restore : draw);
  };

  // The values nearest to the pointer, one line for each curve.
  const isGone = (element) => element.classList.contains("gone");
  const show = (chart, event) => {
    const box = chart.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * 460;
    const [low, high] = chart.range || rangeOf(curvesOf(chart));
    const place = low + ((at - frame.left) / (frame.right - frame.left)) * (high - low);
    // 1. The point of each curve that is nearest to the pointer.
    const found = [];
    for (const curve of curvesOf(chart)) {
      if (curve.form !== "raw" || isGone(curve.path)) continue;
      const { values, track } = curve, places = track[data.axes[axis]];
      let best = -1;
      places.forEach((value, i) => {
        if (value === null || values.mean[i] === null) return;
        if (best < 0 || Math.abs(value - place) <= Math.abs(places[best] - place)) best = i;
      });
      if (best >= 0) found.push({ ...curve, best, place: places[best], step: track.step[best] });
    }
    if (found.length === 0) return;
    const distance = (point) => Math.abs(point.place - place);
    const nearest = found.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    // 2. A line for each that is near the nearest one.
    const text = (value) => number(value * Number(chart.dataset.scale));
    const lines = found
      .filter((point) => Math.abs(point.place - nearest.place) <= 0.02 * (high - low))
      .map(({ run, track, values, best }) => {
        const isRange = values.low && values.low[best] !== values.high[best];
        const range = isRange ? ` (${text(values.low[best])} to ${text(values.high[best])})` : "";
        const name = data.runs.length > 1 ? short(data.runs[run].name) : "";
        const label = [name, track.label].filter((word) => word).join(" ") || "training";
        return `${label}: ${text(values.mean[best])}${range} ${chart.dataset.unit}`.trim();
      });
    if (lines.length > 12) lines.splice(12, lines.length, `and ${lines.length - 12} more`);
    const figure = chart.parentElement;
    let tip = figure.querySelector(".tip"), cursor = chart.querySelector(".cursor");
    if (!tip) {
      tip = document.createElement("div");
      tip.className = "tip";
      figure.append(tip);
      cursor = svg("line", { class: "cursor", y1: frame.top, y2: frame.bottom });
      chart.append(cursor);
    }
    const where = axis === 0 ? "" : `${number(nearest.place / unit.size)} ${unit.name}, `;
    tip.textContent = [`${where}step ${number(nearest.step, 9)}`, ...lines].join("\n");
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
    input.addEventListener("change", () =>
      document.body.classList.toggle(input.dataset.hides, !input.checked));
  for (const input of document.querySelectorAll("input[data-shows]"))
    input.addEventListener("change", () => {
      for (const element of document.querySelectorAll(`svg [data-run="${input.dataset.shows}"]`))
        element.classList.toggle("gone", !input.checked);
    });
  document.querySelector(".controls").hidden = false;
})();
