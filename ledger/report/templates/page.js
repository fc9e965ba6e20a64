"use strict";
// The page is whole without this script: it adds hover, zoom, filters, and opens what a link points into.
const $ = (selector, from = document) => Array.from(from.querySelectorAll(selector));

function picture(figure) {
  const svg = figure.querySelector("svg.timeline");
  const about = svg.dataset;
  const left = +about.left, right = +about.right, start = +about.start, end = Math.max(+about.end, start + 1);
  const samples = JSON.parse(figure.querySelector("script.samples").textContent);
  const hover = figure.querySelector(".hover"), said = figure.querySelector(".said");
  const cursor = svg.querySelector(".cursor"), selection = svg.querySelector(".selection");
  let from = start, to = end, chosen = -1;

  const x = (at) => left + ((at - from) / (to - from)) * (right - left);
  const at = (place) => from + ((place - left) / (right - left)) * (to - from);
  const inSvg = (event) => ((event.clientX - svg.getBoundingClientRect().left) * svg.viewBox.baseVal.width) / svg.getBoundingClientRect().width;

  function words(length) {
    if (about.clock !== "elapsed") return String(Math.round(length));
    const seconds = length / 1e9;
    if (length === 0) return "0";
    if (Math.abs(seconds) < 1e-3) return `${+(seconds * 1e6).toPrecision(3)} µs`;
    return Math.abs(seconds) < 1 ? `${+(seconds * 1e3).toPrecision(4)} ms` : `${+seconds.toPrecision(4)} s`;
  }

  function ticks() {
    const length = to - from;
    let step = 10 ** Math.floor(Math.log10(length));
    for (const part of [1, 2, 5, 10]) if (length / (step / part) >= 5) { step /= part; break; }
    const axis = svg.querySelector(".axis");
    axis.replaceChildren();
    for (let moment = Math.ceil((from - start) / step) * step; moment <= to - start; moment += step) {
      const place = x(start + moment);
      const line = document.createElementNS(svg.namespaceURI, "line");
      line.setAttribute("class", "gridline");
      for (const [name, value] of [["x1", place], ["x2", place], ["y1", 8], ["y2", about.axis]]) line.setAttribute(name, value);
      const text = document.createElementNS(svg.namespaceURI, "text");
      text.setAttribute("x", place); text.setAttribute("y", +about.axis + 16); text.setAttribute("text-anchor", "middle");
      text.setAttribute("class", "dim");
      text.textContent = words(moment);
      axis.append(line, text);
    }
  }

  function draw() {
    for (const bar of $("[data-from]", svg)) {
      const begins = Math.max(x(+bar.dataset.from), left), ends = Math.min(x(+bar.dataset.to), right);
      bar.style.display = ends < left || begins > right ? "none" : "";
      if (bar.tagName === "line") { bar.setAttribute("x1", x(+bar.dataset.to)); bar.setAttribute("x2", x(+bar.dataset.to)); continue; }
      bar.setAttribute("x", begins);
      bar.setAttribute("width", Math.max(ends - begins, 2));
    }
    for (const mark of $("[data-at]", svg)) {
      const place = x(+mark.dataset.at);
      mark.setAttribute("transform", `translate(${place} ${mark.dataset.y})`);
      mark.style.display = place < left - 1 || place > right + 1 ? "none" : "";
    }
    for (const curve of $("path[data-points]", svg)) {
      curve.setAttribute("d", curve.dataset.points.split("|").map((run) =>
        run.split(" ").map((point, n) => { const [t, y] = point.split(","); return `${n ? "L" : "M"}${x(+t).toFixed(2)} ${y}`; }).join(" ")).join(" "));
    }
    for (const dot of $("circle[data-t]", svg)) dot.setAttribute("cx", x(+dot.dataset.t));
    ticks();
    figure.dataset.zoomed = from > start || to < end ? "yes" : "no";
    figure.querySelector("[data-zoom=whole]").disabled = from === start && to === end;
  }

  function zoom(newFrom, newTo) {
    from = Math.max(newFrom, start);
    to = Math.min(Math.max(newTo, from + (end - start) / 5000), end);
    draw();
    unpoint();
  }

  function scale(factor, middle = (from + to) / 2) {
    zoom(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  function unpoint() {
    hover.style.display = "none";
    cursor.style.visibility = "hidden";
  }

  function point(index, aloud) {
    chosen = index;
    const sample = samples[index], place = x(sample.at);
    cursor.setAttribute("x1", place); cursor.setAttribute("x2", place);
    cursor.style.visibility = "visible";
    hover.replaceChildren();
    const name = document.createElement("b"), table = document.createElement("table");
    name.textContent = sample.label;
    const when = document.createElement("span");
    when.textContent = sample.when; when.className = "dim";
    for (const pair of sample.values) {
      const row = table.insertRow();
      for (const text of pair) row.insertCell().textContent = text;
    }
    hover.append(name, when, table);
    hover.style.display = "block";
    const box = svg.getBoundingClientRect(), across = (place * box.width) / svg.viewBox.baseVal.width;
    const room = figure.clientWidth - across - 40;
    hover.style.left = `${room > hover.offsetWidth ? across + 28 : across - hover.offsetWidth}px`;
    hover.style.top = `${svg.parentElement.offsetTop + 16}px`;
    if (aloud) said.textContent = `${sample.label}, ${sample.when}: ${sample.values.map((pair) => pair.join(" ")).join(", ")}`;
  }

  function nearest(moment) {
    let best = -1;
    samples.forEach((sample, n) => {
      if (sample.at < from || sample.at > to) return;
      if (best < 0 || Math.abs(sample.at - moment) < Math.abs(samples[best].at - moment)) best = n;
    });
    return best;
  }

  let dragged = null;
  svg.addEventListener("pointermove", (event) => {
    const place = inSvg(event);
    if (dragged !== null) {
      selection.setAttribute("x", Math.max(Math.min(dragged, place), left));
      selection.setAttribute("width", Math.min(Math.abs(place - dragged), right - left));
      selection.style.visibility = "visible";
      return;
    }
    const index = place < left || place > right ? -1 : nearest(at(place));
    index < 0 ? unpoint() : point(index, false);
  });
  svg.addEventListener("pointerleave", unpoint);
  svg.addEventListener("pointerdown", (event) => {
    const place = inSvg(event);
    if (event.button === 0 && event.pointerType === "mouse" && place >= left && place <= right && !event.target.closest("a")) {
      dragged = place;
      svg.setPointerCapture(event.pointerId);
      event.preventDefault();
    }
  });
  svg.addEventListener("pointerup", (event) => {
    const place = Math.min(Math.max(inSvg(event), left), right), began = dragged;
    dragged = null;
    selection.style.visibility = "hidden";
    if (began !== null && Math.abs(place - began) > 6) zoom(at(Math.min(began, place)), at(Math.max(began, place)));
  });
  svg.addEventListener("dblclick", () => zoom(start, end));
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    scale(event.deltaY > 0 ? 1.25 : 0.8, at(inSvg(event)));
  }, { passive: false });
  const keys = {
    "+": () => scale(0.6), "=": () => scale(0.6), "-": () => scale(1.6), 0: () => zoom(start, end), Escape: unpoint,
    ArrowRight: () => samples.length && point(Math.min(chosen + 1, samples.length - 1), true),
    ArrowLeft: () => samples.length && point(Math.max(chosen - 1, 0), true),
    Home: () => samples.length && point(0, true), End: () => samples.length && point(samples.length - 1, true),
  };
  svg.addEventListener("keydown", (event) => {
    if (event.target !== svg || !(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const button of $("[data-zoom]", figure)) {
    button.addEventListener("click", () => ({ in: () => scale(0.6), out: () => scale(1.6), whole: () => zoom(start, end) })[button.dataset.zoom]());
  }
  draw();
}

function filters(tools) {
  const rows = $("tr", document.querySelector(`#${tools.dataset.filters} tbody`));
  const search = tools.querySelector("input[type=search]"), kind = tools.querySelector("select"), only = tools.querySelector("input[type=checkbox]");
  const count = tools.querySelector("output");
  function apply() {
    const wanted = search ? search.value.trim().toLowerCase() : "";
    let shown = 0;
    for (const row of rows) {
      const fits = (!wanted || row.textContent.toLowerCase().includes(wanted)) &&
        (!kind || !kind.value || row.dataset.kind === kind.value) && (!only || !only.checked || row.dataset.differs === "yes");
      row.hidden = !fits;
      shown += fits;
    }
    if (count) count.textContent = shown === rows.length ? "" : `${shown} of ${rows.length}`;
  }
  for (const input of [search, kind, only]) if (input) input.addEventListener("input", apply);
  tools.unfilter = () => {
    if (search) search.value = "";
    if (kind) kind.value = "";
    if (only) only.checked = false;
    apply();
  };
  apply();
}

function follow() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let box = target; box; box = box.parentElement) if (box.tagName === "DETAILS") box.open = true;
  if (target.hidden) $(".tools[data-filters]").forEach((tools) => tools.unfilter());
  target.scrollIntoView({ block: "center" });
}

$("figure.chart").forEach(picture);
$(".tools[data-filters]").forEach(filters);
$(".needs-script").forEach((part) => { part.hidden = false; });
addEventListener("hashchange", follow);
addEventListener("beforeprint", () => $("details.section").forEach((part) => { part.open = true; }));
follow();
