"use strict";
// Everything that comes from a log or a file name is put in the page as text, never as markup.
(() => {
  const SHOWN_AT_ONCE = 8, MORE = 100;
  const RANK_DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
  const PHASE_COLOURS = {
    import: "#7f8c9b", init: "#a0aab5", data: "#b07aa1", features: "#e0a92e", "first-step": "#e15759",
    step: "#4e79a7", validate: "#59a14f", checkpoint: "#9c755f", teardown: "#76b7b2",
  };
  const byId = (id) => document.getElementById(id);
  let parsed;
  const report = () => (parsed ??= JSON.parse(byId("report").textContent));

  function make(tag, properties = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
    return element;
  }

  // ---- filters of the grids

  function placeOf(group, cell) {
    return report().groups.find((one) => one.id === group).places.find((one) => one.cell === cell);
  }

  function showCounts(origin) {
    for (const button of document.querySelectorAll("button.place")) {
      const place = placeOf(button.dataset.group, button.dataset.cell);
      const { tier, passes, runs } = place[origin];
      button.className = `place ${tier}`;
      const uncounted = tier === "untested" && place.reason;
      const shown = runs ? `${passes} of ${runs}` : uncounted ? "(not counted)" : "";
      button.replaceChildren(make("span", { class: "tier" }, tier), " ", make("span", { class: "of" }, shown));
      const suffix = runs ? `, ${shown} completed` : uncounted ? `, ${place.reason}` : "";
      button.setAttribute("aria-label", `${place.cell}: ${tier}${suffix}`);
    }
  }

  function filter() {
    const host = byId("by-host").value, workload = byId("by-workload").value;
    const groups = [...document.querySelectorAll(".group")];
    for (const group of groups) {
      group.hidden = (host && group.dataset.host !== host) || (workload && group.dataset.workload !== workload);
    }
    const shown = groups.filter((group) => !group.hidden).length;
    byId("filtered").textContent = `${shown} of ${groups.length} tables shown`;
  }

  // ---- a cell

  function table(names, rows) {
    return make("div", { class: "scroll" }, make("table", {},
      make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows)));
  }

  function facts(pairs) {
    const rows = pairs.filter(([, value]) => value).map(([name, value]) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
    return make("div", { class: "scroll" }, make("table", {}, make("tbody", {}, ...rows)));
  }

  const folded = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);
  const counts = (found) => Object.entries(found).map(([name, count]) => `${name} x${count}`).join(", ");
  const when = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

  function verdictLines(group, cell) {
    const found = report().verdicts.filter((one) => one.group === group && one.cell === cell);
    return found.map((one) => make("p", {},
      make("strong", {}, one.stale ? `stale, environment ${one.environment_hash.slice(0, 8)}` : one.tier),
      `: ${one.passes} of ${one.runs} counted runs completed; the pass rate lies between ${one.low.toFixed(3)} and `
      + `${one.high.toFixed(3)}, each bound with ${(report().confidence * 100).toFixed(0)} % confidence.`
      + (Object.keys(one.diagnoses).length ? ` Failures: ${counts(one.diagnoses)}.` : "")
      + (Object.keys(one.not_counted).length ? ` Not counted: ${counts(one.not_counted)}.` : "")
      + (one.imported ? ` ${one.imported} of the counted runs were imported.` : "")
      + (one.qualifies_for_promotion ? "" : " It does not qualify for promotion.")));
  }

  function runRow(run, open) {
    const full = report().details[run.run_id];
    const name = full ? make("button", { type: "button", class: "run", onclick: () => open(run) }, run.run_id) : run.run_id;
    const counted = run.uncounted ? `not counted: ${run.uncounted}` : run.why_counted_so ? "counted as failed" : "";
    const why = [run.diagnosis, counted, run.imported ? "imported" : ""];
    return make("tr", { "data-run": run.run_id }, make("td", {}, name), make("td", { class: "outcome" }, run.outcome),
      make("td", {}, why.filter(Boolean).join("; ")), make("td", {}, when(run.started)),
      make("td", { class: "number" }, run.seconds.toFixed(1)),
      make("td", { class: "number" }, run.samples_per_second === null ? "" : run.samples_per_second.toFixed(0)));
  }

  function runsOf(group, cell) {
    const detail = make("section", { class: "detail", "aria-live": "off" });
    const runs = report().runs.filter((run) => run.group === group && run.cell === cell);
    if (!runs.length) return [make("p", {}, "It was not run.")];
    const shown = table(["run", "outcome", "why", "began", "seconds", "samples/s"], []);
    const body = shown.querySelector("tbody");
    const open = (run, focus = true) => {
      for (const row of body.rows) row.toggleAttribute("aria-current", row.dataset.run === run.run_id);
      detail.replaceChildren(...runDetail(run));
      if (focus) detail.querySelector("h3").focus();
      draw(detail);
    };
    const more = make("button", { type: "button", class: "more", onclick: () => extend() });
    const extend = () => {
      const from = body.rows.length;
      body.append(...runs.slice(from, from + (from ? MORE : SHOWN_AT_ONCE)).map((run) => runRow(run, open)));
      more.textContent = `Show more of the ${runs.length} runs`;
      more.hidden = body.rows.length >= runs.length;
    };
    extend();
    const full = runs.filter((run) => report().details[run.run_id]);
    const first = full.find((run) => run.outcome !== "completed") ?? full[0];
    if (first) queueMicrotask(() => open(first, false));
    const kept = full.length < runs.length
      ? make("p", { class: "soft" }, "Runs without a link are not shown in full here: see runs/ beside this file.") : "";
    return [make("h3", {}, `Runs, newest first (${runs.length})`), shown, more, kept, detail];
  }

  function openCell(group, cell) {
    const place = placeOf(group, cell);
    const grid = report().groups.find((one) => one.id === group);
    byId("cell-title").textContent = cell;
    const dockerfile = report().dockerfiles[cell];
    byId("cell-body").replaceChildren(
      make("p", { class: "soft" }, `${grid.scope}, workload ${grid.workload}, host with ${grid.host}, executor ${grid.executor}`),
      ...(place.reason ? [make("p", { class: "caution" }, `${place.count.tier}: ${place.reason}`)] : []),
      ...verdictLines(group, cell),
      ...runsOf(group, cell),
      dockerfile ? folded("Dockerfile", make("pre", {}, dockerfile)) : "",
    );
    byId("cell").showModal();
    byId("cell").scrollTop = 0;
    byId("cell-title").focus();
  }

  // ---- a run

  function explanation(found) {
    const lines = found.lines.map((one) => make("li", {}, make("code", {}, `${one.file}:${one.line}`), make("pre", {}, one.text)));
    const safe = found.link && /^https?:\/\//.test(found.link);
    return [
      make("p", {}, make("strong", {}, `${found.class}: `), found.cause),
      lines.length ? make("ul", {}, ...lines) : "",
      make("p", {}, make("strong", {}, "What helps: "), found.remedy),
      found.presets.length ? make("p", {}, `Presets that do it: ${found.presets.join(", ")}`) : "",
      safe ? make("p", {}, make("a", { href: found.link, rel: "noreferrer" }, found.link)) : "",
    ];
  }

  function losses(curve) {
    const shown = (loss) => (loss === null ? "-" : loss.toFixed(4));
    const rows = curve.train.map((loss, index) => make("tr", {}, make("td", { class: "number" }, `${index + 1}`),
      make("td", { class: "number" }, shown(loss)), make("td", { class: "number" }, shown(curve.validation[index]))));
    return table(["epoch", "train loss", "validation loss"], rows);
  }

  function figure(title, name, number, described) {
    return make("figure", {}, make("figcaption", {}, title), make("div", { class: "chart", role: "img",
      "aria-label": `${title}: ${described}`, "data-chart": name, "data-number": `${number}` }));
  }

  function charts(detail) {
    const figures = detail.loss_curves.map((curve, number) => {
      const seen = curve.loss.filter((loss) => loss !== null);
      return figure(`Loss of ${curve.model}`, "loss", number, `${seen.length} steps, from ${seen[0]} to ${seen.at(-1)}`);
    });
    const peak = Math.max(0, ...detail.memory_curves.flatMap((one) => one.rss_mb)).toFixed(0);
    if (detail.memory_curves.length) figures.push(figure("Memory", "memory", 0, `resident at most ${peak} MB where it was reported`));
    if (detail.phases.length) figures.push(figure("Phases", "phases", 0, "the same as in the table of phases"));
    return make("div", { class: "charts" }, ...figures);
  }

  function runDetail(run) {
    const detail = report().details[run.run_id];
    const place = `runs/${encodeURIComponent(run.run_id)}`;
    const link = (file) => make("a", { href: `${place}/${file}` }, file || "folder");
    const variables = Object.entries(detail.variables).map(([phase, set]) =>
      make("pre", {}, [`${phase}:`, ...Object.entries(set).map(([name, value]) => `  ${name}=${value}`)].join("\n")));
    const phases = detail.phases.map((one) => make("tr", {}, make("td", { class: "number" }, `${one.rank}`), make("td", {}, one.phase),
      make("td", { class: "number" }, one.start.toFixed(1)), make("td", { class: "number" }, one.seconds.toFixed(1))));
    const content = [
      make("h3", { tabindex: "-1" }, `Run ${run.run_id}`),
      make("p", {}, make("span", { class: "outcome" }, run.outcome + (run.diagnosis ? ` (${run.diagnosis})` : "")),
        run.detail ? `: ${run.detail}` : "", run.uncounted ? ` Not counted: ${run.why_counted_so || run.uncounted}.`
          : run.why_counted_so ? ` Counted as failed: ${run.why_counted_so}.` : ""),
      ...detail.host_problems.map((text) => make("p", { class: "caution" }, text)),
      ...(detail.explanation ? explanation(detail.explanation) : []),
      charts(detail),
      facts([
        ["really used", detail.used], ["injected fault", detail.injected_fault], ["memory at the peak", detail.memory], ["data", detail.data],
        ["ended", Object.entries(detail.exits).map(([phase, how]) => `${phase}: ${how}`).join(", ")],
        ["last phase", run.outcome === "completed" ? "" : detail.last_phase],
        ...detail.trainings.map((one) => [one.kind, one.text + (one.time ? `; time: ${one.time}` : "")]),
      ]),
      ...detail.loss_curves.filter((one) => one.train.length).map((one) => folded(`Loss of each epoch of ${one.model}`, losses(one))),
      phases.length ? folded("Phases", table(["rank", "phase", "from second", "seconds"], phases)) : "",
      detail.again ? folded("Run it again, watched", make("pre", {}, detail.again)) : "",
      folded("Run it by hand", make("pre", {}, detail.by_hand.join("\n"))),
      folded("Environment variables", ...variables),
      make("p", {}, "Files: ", link(""), ", ", link("log.txt"), ", ", link("record.json")),
    ];
    return content.filter((one) => one !== "").map((one) => Object.assign(one, { run: run.run_id }));
  }

  // ---- charts: the library is unpacked when the first is drawn

  let library;
  function plotly() {
    library ??= (async () => {
      const packed = Uint8Array.from(atob(byId("plotly").textContent), (one) => one.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      document.head.append(Object.assign(document.createElement("script"), { textContent: await new Response(stream).text() }));
      return window.Plotly;
    })();
    return library;
  }

  function layout(across, title) {
    const style = getComputedStyle(document.body);
    const line = getComputedStyle(document.querySelector("dialog .detail")).borderTopColor;
    const axis = { gridcolor: line, zerolinecolor: line, automargin: true };
    return {
      autosize: true, height: 250, margin: { l: 50, r: 10, t: 10, b: 40 }, font: { color: style.color, size: 12 }, showlegend: true,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "overlay", legend: { orientation: "h", y: 1, yanchor: "bottom" },
      xaxis: { ...axis, title: { text: across } }, yaxis: { ...axis, title: { text: title } },
    };
  }

  const SECONDS = "seconds since the start";
  const CHARTS = {
    loss: (detail, number) => {
      const curve = detail.loss_curves[number];
      const ends = { x: curve.epoch_ends, mode: "markers" };
      return [layout("step", "loss"), [
        { x: curve.steps, y: curve.loss, name: "step", mode: "lines+markers", marker: { size: 3 }, line: { width: 1 } },
        { ...ends, y: curve.train, name: "mean of an epoch", marker: { size: 9, symbol: "square" } },
        { ...ends, y: curve.validation, name: "validation", marker: { size: 9, symbol: "diamond" } },
      ]];
    },
    memory: (detail) => [layout(SECONDS, "MB"), detail.memory_curves.flatMap((one) =>
      [["resident", one.rss_mb], ["reserved on the device", one.reserved_mb]]
        .filter(([, sizes]) => sizes.some((size) => size !== null))
        .map(([name, sizes]) => ({ x: one.seconds, y: sizes, name: `${name}, rank ${one.rank}`, mode: "lines",
          line: { dash: RANK_DASHES[one.rank] } })))],
    phases: (detail) => [
      { ...layout(SECONDS, ""), yaxis: { automargin: true, autorange: "reversed", type: "category" } },
      [...new Set(detail.phases.map((one) => one.phase))].map((phase) => {
        const spans = detail.phases.filter((one) => one.phase === phase);
        return { type: "bar", orientation: "h", name: phase, marker: { color: PHASE_COLOURS[phase] },
          y: spans.map((one) => `rank ${one.rank}`), base: spans.map((one) => one.start), x: spans.map((one) => one.seconds) };
      }),
    ],
  };

  async function draw(section) {
    const places = [...section.querySelectorAll("[data-chart]")];
    if (!places.length) return;
    const detail = report().details[section.querySelector("h3").run];
    if (!("DecompressionStream" in window)) {
      for (const place of places) place.textContent = "Charts need a browser of 2023 or later.";
      return;
    }
    const Plotly = await plotly();
    for (const place of places) {
      if (!place.isConnected) continue;
      const [arranged, traces] = CHARTS[place.dataset.chart](detail, Number(place.dataset.number));
      await Plotly.newPlot(place, traces, arranged, { responsive: true, displaylogo: false, displayModeBar: false });
      place.dataset.drawn = "yes";
    }
  }

  for (const button of document.querySelectorAll("button.place")) {
    button.addEventListener("click", () => openCell(button.dataset.group, button.dataset.cell));
  }
  if (byId("by-host")) {
    byId("by-host").addEventListener("change", filter);
    byId("by-workload").addEventListener("change", filter);
    byId("by-origin").addEventListener("change", (event) => { showCounts(event.target.value); filter(); });
    filter();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    const detail = document.querySelector("dialog[open] .detail");
    if (detail) draw(detail);
  });
})();
