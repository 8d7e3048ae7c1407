"use strict";
// Everything that comes from a log or a file name is put in the page as text, never as markup.
(() => {
  const SHOWN_AT_ONCE = 8, MORE = 100;
  const RANK_DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "solid", "dash"];
  const PHASE_COLOURS = {
    __proto__: null,
    import: "#7f8c9b", init: "#a0aab5", data: "#b07aa1", features: "#e0a92e", "first-step": "#e15759",
    step: "#4e79a7", validate: "#59a14f", checkpoint: "#9c755f", teardown: "#76b7b2",
  };
  // Okabe and Ito (2008): told apart by the colour-blind.
  const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];
  const byId = (id) => document.getElementById(id);
  let parsed;
  const report = () => (parsed ??= read());

  function read() {
    const told = JSON.parse(byId("report").textContent);
    // By names that anybody may put into an address, such as "constructor", which every object has.
    for (const named of [told.dockerfiles, told.details]) Object.setPrototypeOf(named, null);
    return told;
  }

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
    for (const link of document.querySelectorAll(".group .place")) {
      const place = placeOf(link.dataset.group, link.dataset.cell);
      const { tier, passes, runs } = place[origin];
      link.className = `place ${tier}`;
      const uncounted = tier === "untested" && place.reason;
      const shown = runs ? `${passes} of ${runs}` : uncounted ? "(not counted)" : "";
      link.replaceChildren(make("b", {}, tier), " ", shown ? make("span", {}, shown) : "");
      const suffix = runs ? `, ${shown} completed` : uncounted ? `, ${place.reason}` : "";
      link.setAttribute("aria-label", `${place.cell}: ${tier}${suffix}`);
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

  // ---- the comparison

  function sortBy(column, button) {
    const table = byId("compared"), head = button.closest("th");
    const descending = head.getAttribute("aria-sort") === "ascending";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)];
      const numbers = x !== "" && y !== "" && !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
      return numbers ? x - y : x.localeCompare(y, "en", { numeric: true });
    };
    const rows = [...table.tBodies[0].rows].sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
    table.tBodies[0].append(...rows);
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }

  function showRowsWith(text) {
    const rows = [...byId("compared").tBodies[0].rows];
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(text.toLowerCase());
    byId("rows-shown").textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length} rows`;
  }

  // ---- commands

  async function copy(button) {
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      byId("said").textContent = "Copied";
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    } catch {
      getSelection().selectAllChildren(code);
      byId("said").textContent = "Selected; copy it with the keyboard";
    }
  }

  const command = (text) => make("span", { class: "command" },
    make("code", {}, ...text.split(/([ \n]+)/).map((part, at) => (at % 2 ? part : make("span", {}, part)))),
    make("button", { type: "button", class: "copy", "aria-label": "Copy the command" }, "Copy"));

  // ---- a cell

  // A phone shows each value behind the heading of its column.
  function nameCells({ tHead, tBodies }) {
    for (const { cells } of tBodies[0].rows) [...cells].forEach((cell, at) => { cell.dataset.name = tHead.rows[0].cells[at].textContent; });
  }

  function table(label, names, rows) {
    const made = make("table", { class: "listed", "aria-label": label },
      make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))),
      make("tbody", {}, ...rows));
    nameCells(made);
    return make("div", { class: "scroll" }, made);
  }

  function facts(label, pairs) {
    const rows = pairs.filter(([, value]) => value).map(([name, value]) =>
      make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value)));
    return make("div", { class: "scroll" }, make("table", { "aria-label": label }, make("tbody", {}, ...rows)));
  }

  const folded = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);
  const counts = (found) => Object.entries(found).map(([name, count]) => `${name} x${count}`).join(", ");
  const when = (seconds) => `${new Date(seconds * 1000).toISOString().slice(0, 16).replace("T", " ")} UTC`;

  function newestFailure(verdict) {
    const failed = report().runs.find((run) => run.failed && run.group === verdict.group && run.cell === verdict.cell
      && verdict.environment_hash.startsWith(run.environment_hash))?.run_id;
    return failed ? [" The newest failure: ", make("a", { href: runLink(failed) }, failed), "."] : [];
  }

  // No line ends between a number and its unit.
  const joined = (text) => text.replace(/(\d) (?=(?:h|min|s|GB)\b|%)/g, "$1\u00a0");

  function verdictLines(group, cell) {
    const found = report().verdicts.filter((one) => one.group === group && one.cell === cell);
    return found.map((one) => make("p", {},
      make("strong", {}, one.stale ? `stale, environment ${one.environment_hash.slice(0, 8)}` : one.tier),
      joined(`: ${one.passes} of ${one.runs} counted runs completed; the pass rate lies between ${one.low.toFixed(3)} and `
      + `${one.high.toFixed(3)}, each bound with ${Number((report().confidence * 100).toPrecision(6))} % confidence. ${one.started} of ${one.starts} starts succeeded (the share is above `
      + `${Math.floor(one.start_low * 100 + 1e-9)} %)${one.hours ? `, and ${one.trained} of training had ${one.failures || "no"} failure${one.failures > 1 ? "s" : ""}: ${one.mtbf.split(":")[0]}` : ""}.`
      + (Object.keys(one.diagnoses).length ? ` Failures: ${counts(one.diagnoses)}.` : "")
      + (Object.keys(one.not_counted).length ? ` Not counted: ${counts(one.not_counted)}.` : "")
      + (one.imported ? ` ${one.imported} of the counted runs were imported.` : "")
      + (one.qualifies_for_promotion ? "" : " It does not qualify for promotion.")), ...newestFailure(one)));
  }

  const cellLink = (cell, group) => `#/cell/${encodeURIComponent(cell)}${group ? `/${group}` : ""}`;
  const runLink = (run) => `#/run/${encodeURIComponent(run)}`;

  function runRow(run) {
    const counted = run.uncounted ? `not counted: ${run.uncounted}` : run.why_counted_so ? "counted as failed" : "";
    const why = [run.diagnosis, counted, run.imported ? "imported" : ""];
    return make("tr", { "data-run": run.run_id }, make("td", {}, make("a", { href: runLink(run.run_id) }, run.run_id)),
      make("td", { class: `outcome${run.failed ? " failed" : ""}` }, run.outcome),
      make("td", {}, why.filter(Boolean).join("; ")), make("td", { class: "when" }, when(run.started)),
      make("td", { class: "number" }, run.seconds.toFixed(1)),
      make("td", { class: "number" }, run.samples_per_second === null ? "" : run.samples_per_second.toFixed(0)));
  }

  function runsOf(group, cell) {
    const runs = report().runs.filter((run) => run.group === group && run.cell === cell);
    if (!runs.length) return [make("p", {}, "It was not run here.")];
    const shown = table("Runs, newest first", ["run", "outcome", "why", "began", "seconds", "samples/s"], []);
    const body = shown.querySelector("tbody");
    const more = make("button", { type: "button", class: "more", onclick: () => extend() });
    const extend = () => {
      const from = body.rows.length;
      body.append(...runs.slice(from, from + (from ? MORE : SHOWN_AT_ONCE)).map(runRow));
      nameCells(shown.firstChild);
      more.textContent = `Show more of the ${runs.length} runs`;
      more.hidden = body.rows.length >= runs.length;
    };
    extend();
    return [make("h3", {}, `Runs, newest first (${runs.length})`), shown, more];
  }

  function cellView(cell, first) {
    const known = report().groups.filter((group) => group.places.some((place) => place.cell === cell));
    const ran = known.filter((group) => report().runs.some((run) => run.group === group.id && run.cell === cell));
    ran.sort((a, b) => (b.id === first) - (a.id === first));
    const shown = ran.length ? ran : known.filter((group) => group.id === first);
    const excluded = report().excluded.find((one) => one.cells.includes(cell));
    const title = make("h1", { tabindex: "-1" }, cell);
    if (!known.length && !excluded && !report().dockerfiles[cell]) {
      return [title, make("p", {}, "This report has nothing about a cell of that name.")];
    }
    return [
      title,
      excluded ? make("p", { class: "caution" }, `excluded: ${excluded.reason}`) : "",
      ...shown.flatMap((group) => {
        const place = placeOf(group.id, cell);
        const reason = place.reason && place.reason !== excluded?.reason;
        return [
          make("h2", {}, `${group.scope}, workload ${group.work}`),
          make("p", { class: "soft" }, `host with ${group.host}, executor ${group.executor}`),
          reason ? make("p", { class: "caution" }, `${place.count.tier}: ${place.reason}`) : "",
          ...verdictLines(group.id, cell),
          ...runsOf(group.id, cell),
        ];
      }),
      shown.length ? "" : make("p", {}, "It was not run."),
      report().dockerfiles[cell] ? folded("Dockerfile", make("pre", {}, report().dockerfiles[cell])) : "",
    ];
  }

  // ---- a run

  // Words in backquotes are names or commands.
  const quoted = (text) => text.split("`").map((part, at) => (at % 2 ? make("code", {}, part) : part));

  function explanation(found) {
    const lines = found.lines.map((one) => make("li", {}, make("code", {}, `${one.file}:${one.line}`), make("pre", {}, one.text)));
    const safe = found.link && /^https?:\/\//.test(found.link);
    return make("div", { class: "cause" },
      make("p", {}, make("strong", {}, "Cause: "), ...quoted(found.cause)),
      make("p", {}, make("strong", {}, "What helps: "), ...quoted(found.remedy)),
      found.presets.length ? make("p", {}, `Presets that do it: ${found.presets.join(", ")}`) : "",
      lines.length ? make("ul", {}, ...lines) : "",
      safe ? make("p", {}, make("a", { href: found.link, rel: "noreferrer" }, found.link)) : "");
  }

  function losses(curve) {
    const shown = (loss) => (loss === null ? "-" : loss.toFixed(4));
    const rows = curve.train.map((loss, index) => make("tr", {}, make("td", { class: "number" }, `${index + 1}`),
      make("td", { class: "number" }, shown(loss)), make("td", { class: "number" }, shown(curve.validation[index]))));
    return table(`Loss of each epoch of ${curve.model}`, ["epoch", "train loss", "validation loss"], rows);
  }

  function figure(title, name, number, described) {
    return make("figure", {}, make("figcaption", {}, title), make("div", { class: "chart", role: "img",
      "aria-label": `${title}: ${described}`, "data-chart": name, "data-number": `${number}` }));
  }

  function charts(detail) {
    const figures = [];
    const rows = rowsOf(detail).map((row) => row.title);
    if (rows.length) {
      figures.push(figure("Over time", "time", 0, `${rows.join(", ")}, in seconds since the start; the phases and the kernel's events are in tables below`));
    }
    for (const [number, curve] of detail.loss_curves.entries()) {
      const seen = curve.loss.filter((loss) => loss !== null);
      figures.push(figure(`Loss of ${curve.model}`, "loss", number,
        `${seen.length} steps, from ${seen[0]} to ${seen.at(-1)}, the last at step ${curve.steps.at(-1)}`));
    }
    return make("div", {}, ...figures);
  }

  function outcome(run) {
    const why = run.uncounted ? ` Not counted: ${run.why_counted_so || run.uncounted}.`
      : run.why_counted_so ? ` Counted as failed: ${run.why_counted_so}.` : "";
    return make("p", { class: "headline" }, make("span", { class: "outcome" }, run.outcome + (run.diagnosis ? ` (${run.diagnosis})` : "")),
      run.detail ? `: ${run.detail}` : "", why);
  }

  function runView(id) {
    const run = report().runs.find((one) => one.run_id === id), detail = report().details[id];
    const title = make("h1", { tabindex: "-1" }, `Run ${id}`);
    if (!run) return [title, make("p", {}, "This report has no run of that name.")];
    const group = report().groups.find((one) => one.id === run.group);
    const place = `runs/${encodeURIComponent(id)}`;
    const link = (file) => make("a", { href: `${place}/${file}` }, file || "folder");
    const again = report().again[run.again];
    return [
      title,
      outcome(run),
      ...(detail?.host_problems ?? []).map((text) => make("p", { class: "caution" }, text)),
      detail?.explanation ? explanation(detail.explanation) : "",
      again ? make("div", {}, make("p", {}, `${again.why}:`), command(again.command))
        : make("p", { class: "soft" }, "No command of this host repeats it: its data stayed on another, its record is another user's, or its fault came from outside the app."),
      make("p", { class: "soft" }, "Cell ", make("a", { href: cellLink(run.cell, run.group) }, run.cell),
        `, ${group.scope}, workload ${group.work}${run.ran_on === "unknown" ? "" : `, ${run.ran_on}`}, began ${when(run.started)}, took ${run.seconds.toFixed(1)} s. Files: `,
        link(""), ", ", link("log.txt"), ", ", link("record.json")),
      ...(detail ? inFull(run, detail) : [make("p", {}, "Its curves and evidence are not in this page, which shows the newest runs of each cell in full, as far as there is room; "
        + "they are in its folder.")]),
    ];
  }

  function inFull(run, detail) {
    const variables = Object.entries(detail.variables).map(([phase, set]) =>
      make("pre", {}, [`${phase}:`, ...Object.entries(set).map(([name, value]) => `  ${name}=${value}`)].join("\n")));
    const phases = detail.phases.map((one) => make("tr", {}, make("td", { class: "number" }, `${one.rank}`), make("td", {}, one.phase),
      make("td", { class: "number" }, one.start.toFixed(1)), make("td", { class: "number" }, one.seconds.toFixed(1))));
    const events = detail.kernel_events.map((one) => make("tr", {}, make("td", { class: "number" }, one.seconds.toFixed(1)), make("td", {}, one.text)));
    return [
      charts(detail),
      events.length ? make("h2", {}, "What the kernel said meanwhile") : "",
      events.length ? table("What the kernel said meanwhile", ["second", "line of the kernel log"], events) : "",
      make("h2", {}, "Details"),
      facts("Details", [
        ["really used", detail.used], ["injected fault", detail.injected_fault], ["memory at the peak", detail.memory], ["data", detail.data],
        ["ended", Object.entries(detail.exits).map(([phase, how]) => `${phase}: ${how}`).join(", ")],
        ["last phase", run.outcome === "completed" ? "" : detail.last_phase],
        ...detail.trainings.map((one) => [one.kind, one.text + (one.time ? `; time: ${one.time}` : "")]),
      ]),
      ...detail.loss_curves.filter((one) => one.train.length).map((one) => folded(`Loss of each epoch of ${one.model}`, losses(one))),
      phases.length ? folded("Phases", table("Phases", ["rank", "phase", "from second", "seconds"], phases)) : "",
      detail.by_hand.length ? folded("Run it by hand", make("pre", {}, detail.by_hand.join("\n"))) : "",
      folded("Environment variables", ...variables),
    ];
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

  // Charts over time have one axis of seconds, so that what happened at the same moment stands below each other.
  function rowsOf(detail) {
    const rows = [], gpus = detail.gpu_curves;
    const lines = (title, unit, traces) => { if (traces.length) rows.push({ title, unit, traces, height: 110 }); };
    const told = (values) => values.some((value) => value !== null);
    const line = (curve, values, name, dash) => ({ x: curve.seconds, y: values, name, mode: "lines", connectgaps: false,
      line: { dash: RANK_DASHES[dash], color: COLOURS[dash % COLOURS.length], width: 1.6 } });
    if (detail.phases.length) {
      rows.push({ title: "phases", unit: "", height: 30 + 26 * new Set(detail.phases.map((one) => one.rank)).size,
        traces: [...new Set(detail.phases.map((one) => one.phase))].map((phase) => {
          const spans = detail.phases.filter((one) => one.phase === phase);
          return { type: "bar", orientation: "h", name: phase, marker: { color: PHASE_COLOURS[phase] }, legend: "legend2", width: 0.7,
            y: spans.map((one) => `rank ${one.rank}`), base: spans.map((one) => one.start), x: spans.map((one) => one.seconds) };
        }) });
    }
    lines("power", "W", gpus.filter((one) => told(one.power_watts)).map((one) => line(one, one.power_watts, `GPU ${one.gpu}`, one.gpu)));
    const named = (key) => gpus.flatMap((one) => Object.entries(one[key]).map(([name, values], number) =>
      line(one, values, `GPU ${one.gpu} ${name}`, one.gpu + 2 * number)));
    lines("temperature", "°C", named("celsius"));
    lines("clocks", "MHz", named("megahertz"));
    lines("GPU memory in use", "GB", gpus.filter((one) => told(one.used_mb)).map((one) =>
      line(one, one.used_mb.map((size) => (size === null ? null : size / 1000)), `GPU ${one.gpu}`, one.gpu)));
    lines("memory of the processes", "GB", detail.memory_curves.flatMap((one) =>
      [["resident", one.rss_mb], ["reserved on the device", one.reserved_mb]].filter(([, sizes]) => told(sizes))
        .map(([name, sizes], number) => line(one, sizes.map((size) => (size === null ? null : size / 1000)), `rank ${one.rank} ${name}`, one.rank + 2 * number))));
    return rows;
  }

  function base() {
    const style = getComputedStyle(document.body);
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line");
    const probe = make("i", { style: `color: ${line}` });
    document.body.append(probe);
    const grid = getComputedStyle(probe).color;
    probe.remove();
    return {
      axis: { gridcolor: grid, zerolinecolor: grid, automargin: true },
      layout: { autosize: true, margin: { l: 60, r: 10, t: 10, b: 40 }, font: { color: style.color, size: 12 }, showlegend: true,
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", barmode: "overlay" },
    };
  }

  const CHARTS = {
    loss: (detail, number) => {
      const curve = detail.loss_curves[number], { axis, layout } = base();
      const ends = { x: curve.epoch_ends, mode: "markers" };
      return [{ ...layout, height: 250, legend: { orientation: "h", y: 1, yanchor: "bottom" },
        xaxis: { ...axis, title: { text: "step" } }, yaxis: { ...axis, title: { text: "loss" } } }, [
        { x: curve.steps, y: curve.loss, name: "step", mode: "lines+markers", marker: { size: 3 }, line: { width: 1 } },
        { ...ends, y: curve.train, name: "mean of an epoch", marker: { size: 9, symbol: "square" } },
        { ...ends, y: curve.validation, name: "validation", marker: { size: 9, symbol: "diamond" } },
      ]];
    },
    time: (detail) => {
      const rows = rowsOf(detail), { axis, layout } = base();
      // A letter is about 6.5 pixels wide.
      const widest = Math.max(...rows.map((row) => row.traces.reduce((sum, one) => sum + one.name.length + 5, row.title.length)));
      const narrow = 6.5 * widest > innerWidth - 120, perLine = narrow ? Math.max(2, Math.floor(innerWidth / 200)) : widest;
      const keyOf = (row) => row.traces.map((one) => `<span style="color:${one.marker?.color ?? one.line.color}">\u25a0</span> ${one.name}`);
      const gap = narrow ? 16 + 15 * Math.max(...rows.map((row) => Math.ceil(row.traces.length / perLine))) : 34, height = rows.reduce((sum, row) => sum + row.height + gap, 0);
      const arranged = { ...layout, height: height + 50, xaxis: { ...axis, title: { text: "seconds since the start" }, domain: [0, 1],
        anchor: rows.length > 1 ? `y${rows.length}` : "y" }, annotations: [], shapes: [], showlegend: false };
      const traces = [];
      let top = 0;
      for (const [index, row] of rows.entries()) {
        const number = index ? `${index + 1}` : "", low = 1 - (top + gap + row.height) / height, high = 1 - (top + gap) / height;
        top += gap + row.height;
        arranged[`yaxis${number}`] = { ...axis, domain: [Math.max(0, low), high], ...(row.title === "phases"
          ? { type: "category", autorange: "reversed" } : { rangemode: "tozero", nticks: 4, title: { text: row.unit } }) };
        arranged.annotations.push({ text: row.title, xref: "paper", yref: "paper", x: 0, y: high, xanchor: "left", yanchor: "bottom",
          yshift: narrow ? 14 * Math.ceil(row.traces.length / perLine) : 0, showarrow: false, font: { size: 12, weight: 600 } });
        const names = keyOf(row), side = narrow ? { x: 0, xanchor: "left", align: "left" } : { x: 1, xanchor: "right" };
        const key = names.map((name, at) => name + ((at + 1) % perLine ? "   " : "<br>")).join("");
        arranged.annotations.push({ text: key, xref: "paper", yref: "paper", y: high, ...side, yanchor: "bottom", showarrow: false, font: { size: 11 } });
        traces.push(...row.traces.map((one) => ({ ...one, legend: undefined, xaxis: "x", yaxis: `y${number}` })));
      }
      for (const [number, event] of detail.kernel_events.entries()) {
        arranged.shapes.push({ type: "line", xref: "x", yref: "paper", x0: event.seconds, x1: event.seconds, y0: 0, y1: 1, line: { color: "#d1495b", width: 1.5, dash: "dot" } });
        if (!number) {
          arranged.annotations.push({ text: "kernel log", xref: "x", yref: "paper", x: event.seconds, y: 1, yanchor: "bottom", showarrow: false,
            font: { size: 11 } });
        }
      }
      return [arranged, traces];
    },
  };

  async function draw(section) {
    const places = [...section.querySelectorAll("[data-chart]")];
    if (!places.length) return;
    const detail = report().details[section.dataset.run];
    if (!("DecompressionStream" in window)) {
      for (const place of places) place.textContent = "Charts need a browser of 2023 or later.";
      return;
    }
    const Plotly = await plotly();
    for (const place of places) {
      if (!place.isConnected) continue;
      const [arranged, traces] = CHARTS[place.dataset.chart](detail, Number(place.dataset.number));
      await Plotly.newPlot(place, traces, arranged, { responsive: true, displaylogo: false, displayModeBar: false });
      // What the library measures its letters with is no picture.
      byId("js-plotly-tester")?.setAttribute("aria-hidden", "true");
      place.dataset.drawn = "yes";
    }
  }

  // ---- the address says what is shown

  const TITLE = document.title;
  let left;

  function show() {
    const [, kind, name, group] = location.hash.split("/").map(decoded);
    const home = location.hash.slice(0, 2) !== "#/", view = byId("view");
    if (home) {
      const came = view.hidden ? null : left;
      byId("home").hidden = false;
      view.hidden = true;
      view.replaceChildren();
      document.title = TITLE;
      if (location.hash.length > 1) document.getElementById(decoded(location.hash.slice(1)))?.scrollIntoView();
      else if (came) { scrollTo(0, came.at); came.link?.focus({ preventScroll: true }); }
      return;
    }
    if (view.hidden) left = { at: scrollY, link: document.activeElement === document.body ? null : document.activeElement };
    const trail = [make("a", { href: "#" }, "All results")];
    const run = kind === "run" && report().runs.find((one) => one.run_id === name);
    if (run) trail.push(" / ", make("a", { href: cellLink(run.cell, run.group) }, run.cell));
    view.dataset.run = kind === "run" ? name : "";
    const content = kind === "run" ? runView(name) : kind === "cell" ? cellView(name, group)
      : [make("h1", { tabindex: "-1" }, "There is nothing at this address")];
    view.replaceChildren(make("nav", { "aria-label": "Where this is" }, ...trail), ...content.filter((one) => one !== ""));
    byId("home").hidden = true;
    view.hidden = false;
    document.title = `${view.querySelector("h1").textContent} - ${TITLE}`;
    scrollTo(0, 0);
    view.querySelector("h1").focus({ preventScroll: true });
    draw(view);
  }

  function decoded(part) {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  }

  addEventListener("hashchange", show);
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.classList.contains("copy")) copy(button);
    if (button?.classList.contains("sort")) sortBy(button.closest("th").cellIndex, button);
  });
  if (byId("rows-with")) byId("rows-with").addEventListener("input", (event) => showRowsWith(event.target.value));
  document.querySelectorAll(".listed, .grid.many").forEach(nameCells);
  if (byId("by-host")) {
    byId("by-host").addEventListener("change", filter);
    byId("by-workload").addEventListener("change", filter);
    byId("by-origin").addEventListener("change", (event) => { showCounts(event.target.value); filter(); });
    filter();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (!byId("view").hidden) draw(byId("view"));
  });
  if (location.hash.length > 1) show();
})();
