"""How the page of memory over time looks, and what it says under the pointer."""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c1f24; --soft: #646b76; --line: #e3e6ea; --card: #f6f7f9;
  --mark: #1c1f24; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --text: #e6e8eb; --soft: #9aa2ad; --line: #2b3037;
  --card: #1c2026; --mark: #fff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--text); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1180px; margin: 0 auto; padding: 24px 28px 60px; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 16px; margin: 30px 0 8px; }
.about { color: var(--soft); margin: 2px 0 14px; overflow-wrap: anywhere; }
.failure { background: var(--card); border-left: 4px solid #d33b3b; padding: 10px 14px; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 10px; margin-bottom: 14px; }
.facts div { background: var(--card); border-radius: 8px; padding: 10px 16px; }
.facts b { display: block; font-size: 19px; font-variant-numeric: tabular-nums; } .facts span { color: var(--soft); }
figure { margin: 0; position: relative; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; color: var(--soft); margin-bottom: 4px; }
.legend i, .category i, #tip i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; }
svg { width: 100%; height: auto; display: block; }
svg .grid { stroke: var(--line); } svg .axis { fill: var(--soft); font-size: 12px; }
svg line.peak { stroke: var(--mark); stroke-dasharray: 3 3; } svg circle.peak { fill: var(--mark); }
svg text.peak { fill: var(--text); font-size: 13px; font-weight: 600; }
#cursor { stroke: var(--mark); opacity: .6; } #choice { fill: var(--mark); opacity: .15; }
svg { user-select: none; cursor: crosshair; }
#tip { position: absolute; pointer-events: none; background: var(--back); border: 1px solid var(--line);
  border-radius: 8px; padding: 8px 12px; box-shadow: 0 4px 16px rgb(0 0 0 / 18%); font-size: 13px; white-space: nowrap; }
#tip div { display: flex; justify-content: space-between; gap: 18px; }
#tip .total { font-weight: 600; border-bottom: 1px solid var(--line); margin-bottom: 4px; padding-bottom: 3px; }
table { border-collapse: collapse; width: 100%; font-size: 13px; } table.narrow { width: auto; min-width: 520px; }
th { text-align: left; color: var(--soft); font-weight: 500; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; }
th.number, .number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.category, .share { white-space: nowrap; } .share { width: 110px; }
.share span { font-variant-numeric: tabular-nums; }
.share i { display: block; height: 4px; border-radius: 2px; min-width: 1px; }
"""

SCRIPT = """
(function () {
  var data = JSON.parse(document.getElementById("data").textContent);
  var figure = document.getElementById("chart"), svg = figure.querySelector("svg");
  var tip = document.getElementById("tip"), cursor = document.getElementById("cursor");
  var choice = document.getElementById("choice"), peak = document.getElementById("peak");
  var areas = document.getElementById("areas"), ticks = document.getElementById("ticks");
  var left = +svg.dataset.left, right = +svg.dataset.right, bottom = +svg.dataset.bottom, top = +svg.dataset.top;
  var whole = [areas.innerHTML, ticks.innerHTML], from = 0, until = data.end_ns, pressed = null;
  function size(bytes) {
    var units = ["GiB", "MiB", "KiB"];
    for (var i = 0; i < 3; i++) {
      var unit = Math.pow(1024, 3 - i);
      if (bytes >= unit) return (bytes / unit).toFixed(2) + " " + units[i];
    }
    return bytes + " B";
  }
  function time(ns) {
    if (ns >= 1e9) return (ns / 1e9).toFixed(4) + " s";
    return ns >= 1e6 ? (ns / 1e6).toFixed(3) + " ms" : (ns / 1e3).toFixed(1) + " us";
  }
  function after(ns) {
    var low = 0, high = data.time_ns.length;
    while (low < high) { var middle = (low + high) >> 1; if (data.time_ns[middle] <= ns) low = middle + 1; else high = middle; }
    return low;
  }
  function x_of(ns) { return left + (ns - from) / (until - from) * (right - left); }
  function y_of(bytes) { return bottom - bytes / +svg.dataset.topBytes * (bottom - top); }
  function make(name, attributes, parent) {
    var made = document.createElementNS(svg.namespaceURI, name);
    for (var key in attributes) made.setAttribute(key, attributes[key]);
    parent.append(made);
    return made;
  }
  function draw() {
    var first = Math.max(after(from) - 1, 0), last = after(until), below = [];
    areas.textContent = ticks.textContent = "";
    for (var at = first; at < last; at++) below.push(0);
    for (var part = 0; part < data.names.length; part++) {
      var out = "", back = "", seen = false;
      for (var i = 0; i < below.length; i++) {
        var x = Math.max(x_of(data.time_ns[first + i]), left).toFixed(1);
        var next = (i + 1 < below.length ? x_of(data.time_ns[first + i + 1]) : right).toFixed(1);
        var above = below[i] + data.bytes[first + i][part];
        seen = seen || above > below[i];
        out += (i ? "" : "M" + x + "," + y_of(below[0]).toFixed(1)) + "V" + y_of(above).toFixed(1) + "H" + next;
        back = "V" + y_of(below[i]).toFixed(1) + "H" + x + back;
        below[i] = above;
      }
      if (seen) make("path", {fill: data.colours[part], d: out + back + "Z"}, areas);
    }
    for (var place = 0; place < 5; place++) {
      var text = make("text", {"class": "axis", x: left + (right - left) * place / 5, y: bottom + 20, "text-anchor": "middle"}, ticks);
      text.textContent = time(from + (until - from) * place / 5);
    }
    mark();
  }
  function mark() {
    if (!peak) return;
    var ns = +peak.dataset.ns, x = x_of(ns), text = peak.querySelector("text"), far = x > (left + right) / 2;
    peak.setAttribute("visibility", x < left || x > right ? "hidden" : "visible");
    peak.querySelector("line").setAttribute("x1", x); peak.querySelector("line").setAttribute("x2", x);
    peak.querySelector("circle").setAttribute("cx", x);
    text.setAttribute("x", far ? x - 8 : x + 8); text.setAttribute("text-anchor", far ? "end" : "start");
  }
  function line(name, value, colour, kind) {
    var row = document.createElement("div"), first = document.createElement("span");
    if (colour) { var chip = document.createElement("i"); chip.style.background = colour; first.append(chip); }
    var last = document.createElement("span");
    first.append(name); last.textContent = value; row.append(first, last); row.className = kind || "";
    tip.append(row);
  }
  function hide() { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); }
  function place_of(event) {
    var box = svg.getBoundingClientRect();
    return (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
  }
  function ns_of(x) { return from + (Math.min(Math.max(x, left), right) - left) / (right - left) * (until - from); }
  function show(event) {
    var x = place_of(event);
    if (pressed !== null) {
      var a = Math.max(Math.min(pressed, x), left), b = Math.min(Math.max(pressed, x), right);
      choice.setAttribute("x", a); choice.setAttribute("width", Math.max(b - a, 0));
      choice.setAttribute("visibility", "visible");
    }
    if (x < left || x > right || !data.time_ns.length) { hide(); return; }
    var at = ns_of(x), low = after(at);
    var held = low ? data.bytes[low - 1] : data.names.map(function () { return 0; });
    tip.textContent = "";
    line(time(at), size(held.reduce(function (sum, part) { return sum + part; }, 0)), "", "total");
    for (var i = data.names.length - 1; i >= 0; i--) if (held[i]) line(data.names[i], size(held[i]), data.colours[i]);
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); cursor.setAttribute("visibility", "visible");
    tip.hidden = false;
    var frame = figure.getBoundingClientRect(), place = event.clientX - frame.left;
    tip.style.left = (place + 16 + tip.offsetWidth > frame.width ? place - 16 - tip.offsetWidth : place + 16) + "px";
    tip.style.top = Math.max(0, event.clientY - frame.top - tip.offsetHeight / 2) + "px";
  }
  function release(event) {
    if (pressed === null) return;
    var a = Math.min(pressed, place_of(event)), b = Math.max(pressed, place_of(event)), start = ns_of(a), end = ns_of(b);
    pressed = null;
    choice.setAttribute("visibility", "hidden");
    if (b - a > 6 && end - start >= 1000) { from = start; until = end; draw(); }
  }
  svg.addEventListener("mousemove", show);
  svg.addEventListener("mouseleave", hide);
  svg.addEventListener("mousedown", function (event) { pressed = place_of(event); event.preventDefault(); });
  window.addEventListener("mouseup", release);
  svg.addEventListener("dblclick", function () {
    from = 0; until = data.end_ns; areas.innerHTML = whole[0]; ticks.innerHTML = whole[1]; mark();
  });
})();
"""
