// What the console's pages do beyond plain HTML: what is left of limits, live, with a chart of the last minutes.
"use strict";
(() => {
  const thin = "\u202f";
  const number = (n) => String(n).replace(/^-/, "−").replace(/\B(?=(\d{3})+(?!\d))/g, thin);
  const money = (nano) => {
    const whole = Math.trunc(nano / 1e9), rest = String(Math.abs(nano % 1e9)).padStart(9, "0").replace(/0+$/, "");
    return (nano < 0 ? "-$" : "$") + Math.abs(whole) + "." + rest.padEnd(2, "0");
  };
  const amount = (kind, n) => (kind.startsWith("spend") ? money(n) : number(n));
  const span = (ms) => {
    if (ms < 1000) return ms + " ms";
    if (ms <= 60000) return Math.ceil(ms / 100) / 10 + " s";
    const two = (n, large, small) => Math.floor(n / 60) + " " + large + (n % 60 ? " " + (n % 60) + " " + small : "");
    return ms <= 3600000 ? two(Math.ceil(ms / 1000), "min", "s") : two(Math.ceil(ms / 60000), "h", "min"); // as the server writes them
  };

  const rooms = document.getElementById("rooms");
  if (rooms) headroom(rooms);

  function headroom(rooms) {
    const keep = 10 * 60; // seconds of the chart
    const status = document.getElementById("live");
    const say = (text, kind) => { status.hidden = false; status.textContent = text; status.className = "tag " + kind; };
    const chart = newChart(keep);
    const find = () => new Map([...rooms.querySelectorAll("[data-meter]")].map((el) => [el.dataset.meter, el]));
    let shown = find();
    chart.offer(shown);

    const source = new EventSource("/console/live");
    source.addEventListener("headroom", (event) => {
      const room = JSON.parse(event.data);
      say("live", "ok");
      const seen = new Set();
      for (const scope of room.scopes) {
        for (const m of scope.meters) {
          const id = scope.scope + "|" + scope.subject + "|" + m.kind;
          seen.add(id);
          if (shown.has(id)) draw(shown.get(id), m);
        }
      }
      const available = document.getElementById("available");
      if (available && room.available_nano !== null) available.textContent = money(room.available_nano);
      if (seen.size !== shown.size || [...seen].some((id) => !shown.has(id))) again();
      chart.add(Date.parse(room.at) / 1000, room.scopes);
    });
    source.addEventListener("away", (event) => say(JSON.parse(event.data), "warn"));
    source.addEventListener("end", (event) => {
      source.close();
      if (event.data === "signed-out") {
        status.textContent = "";
        const link = Object.assign(document.createElement("a"), { href: "/console/sign-in?next=" + encodeURIComponent(location.pathname), textContent: "sign in again" });
        say("The session has ended: ", "warn");
        status.append(link);
      } else {
        say("Not live: too many live pages are open", "warn");
      }
    });
    source.onerror = () => { if (source.readyState !== EventSource.CLOSED) say("reconnecting", "warn"); else if (!status.textContent) say("not live", "warn"); };
    addEventListener("pagehide", () => source.close());

    let asking = false;
    async function again() { // other limits apply than those on the page
      if (asking) return;
      asking = true;
      await htmx.ajax("GET", location.pathname, { target: "#rooms", select: "#rooms", swap: "outerHTML" });
      rooms = document.getElementById("rooms");
      if (rooms) { shown = find(); chart.offer(shown); }
      setTimeout(() => { asking = false; }, 5000);
    }
  }

  function draw(el, m) {
    el.dataset.used = m.used;
    el.dataset.limit = m.limit;
    const set = (name, text) => { const part = el.querySelector(name); if (part.textContent !== text) part.textContent = text; };
    set(".used", amount(m.kind, m.used));
    set(".limit", amount(m.kind, m.limit));
    set(".left", amount(m.kind, m.remaining));
    set(".reset", m.reset_ms ? ", all free in " + span(m.reset_ms) : "");
    set(".waiting", m.waiting ? ", " + number(m.waiting) + " waiting" : "");
    const part = Math.min(100, Math.floor((Math.max(0, m.used) / m.limit) * 100));
    const bar = el.querySelector(".bar");
    bar.querySelector(".fill").setAttribute("width", part);
    bar.setAttribute("class", "bar " + (part >= 100 || m.remaining === 0 ? "over" : part >= 80 ? "near" : "ok"));
  }

  // newChart draws one meter over the last minutes. What it has seen stays for this tab, so that it survives a reload.
  function newChart(keep) {
    const place = document.getElementById("chart"), select = document.getElementById("series"), plot = document.getElementById("plot"), text = document.getElementById("plot-text");
    const name = "weir-headroom-" + document.body.dataset.who;
    let points = [], drawn = null, titles = new Map();
    try { points = JSON.parse(sessionStorage.getItem(name)) || []; } catch { points = []; }
    const css = (v) => getComputedStyle(document.documentElement).getPropertyValue(v).trim();

    function offer(shown) {
      titles = new Map([...shown].map(([id, el]) => [id, { title: el.dataset.title, kind: el.dataset.kind }]));
      const chosen = select.value || sessionStorage.getItem(name + "-series");
      select.replaceChildren(...[...titles].map(([id, t]) => new Option(t.title, id, false, id === chosen)));
      place.hidden = titles.size === 0;
      restart();
    }
    function data() {
      const id = select.value, from = Date.now() / 1000 - keep, kept = points.filter((p) => p.t > from);
      return [kept.map((p) => p.t), kept.map((p) => (p.v[id] ? p.v[id][0] : null)), kept.map((p) => (p.v[id] ? p.v[id][1] : null))];
    }
    function lately() { // what there is of the last minutes, at least one
      const now = Date.now() / 1000, from = points.length ? points[0].t : now;
      return [Math.max(now - keep, Math.min(from, now - 60)), now];
    }
    function height() { // the limit is shown where it is not far above what is used
      const [, used, limits] = data(), most = Math.max(0, ...used), limit = Math.max(0, ...limits);
      return Math.max(1, most > limit * 0.3 ? Math.max(limit, most) * 1.1 : most * 1.5);
    }
    function restart() {
      if (drawn) drawn.destroy();
      drawn = null;
      if (place.hidden || !select.value) return;
      const kind = titles.get(select.value)?.kind || "", ink = css("--soft"), line = css("--line");
      const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line } };
      drawn = new uPlot({
        width: plot.clientWidth, height: plot.clientHeight, legend: { show: false }, cursor: { show: false },
        scales: { x: { range: () => lately() }, y: { range: () => [0, height()] } },
        axes: [{ ...axis, space: 75, values: (u, all) => all.map((t) => new Date(t * 1e3).toISOString().slice(11, all.at(-1) - all[0] < 300 ? 19 : 16)) }, { ...axis, size: 70, values: (u, all) => all.map((v) => amount(kind, v)) }],
        series: [{}, { stroke: css("--accent"), width: 2, fill: css("--tint"), points: { show: (u) => u.data[0].length < 2 } }, { stroke: css("--over"), width: 1, dash: [6, 4], points: { show: false } }],
      }, data(), plot);
      describe();
    }
    function describe() { // for those who do not see the chart
      const [, used, limits] = data(), kind = titles.get(select.value)?.kind || "", known = used.filter((v) => v !== null);
      text.textContent = known.length
        ? amount(kind, known.at(-1)) + " of " + amount(kind, limits.findLast((v) => v !== null)) + " used (line and dashes), between " + amount(kind, Math.min(...known)) + " and " + amount(kind, Math.max(...known)) + " while this page was open. Times are UTC."
        : "Filled while this page is open.";
    }
    function add(t, scopes) {
      const v = {};
      for (const s of scopes) for (const m of s.meters) v[s.scope + "|" + s.subject + "|" + m.kind] = [m.used, m.limit];
      points.push({ t, v });
      points = points.slice(-keep);
      if (drawn) { drawn.setData(data()); describe(); }
    }
    addEventListener("pagehide", () => {
      try { sessionStorage.setItem(name, JSON.stringify(points)); } catch { /* full: the chart begins anew with the next page */ }
    });
    select.addEventListener("change", () => { sessionStorage.setItem(name + "-series", select.value); restart(); });
    new ResizeObserver(() => { if (drawn) drawn.setSize({ width: plot.clientWidth, height: plot.clientHeight }); }).observe(plot);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", restart);
    return { offer, add };
  }
})();
