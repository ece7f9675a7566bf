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
#cursor { stroke: var(--mark); opacity: .6; }
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
  var left = +svg.dataset.left, right = +svg.dataset.right;
  function size(bytes) {
    var units = ["GiB", "MiB", "KiB"];
    for (var i = 0; i < 3; i++) {
      var unit = Math.pow(1024, 3 - i);
      if (bytes >= unit) return (bytes / unit).toFixed(2) + " " + units[i];
    }
    return bytes + " B";
  }
  function time(ns) {
    if (ns >= 1e9) return (ns / 1e9).toFixed(3) + " s";
    return ns >= 1e6 ? (ns / 1e6).toFixed(2) + " ms" : (ns / 1e3).toFixed(1) + " us";
  }
  function line(name, value, colour, kind) {
    var row = document.createElement("div"), first = document.createElement("span");
    if (colour) { var chip = document.createElement("i"); chip.style.background = colour; first.append(chip); }
    var last = document.createElement("span");
    first.append(name); last.textContent = value; row.append(first, last); row.className = kind || "";
    tip.append(row);
  }
  function hide() { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); }
  function show(event) {
    var box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    var x = (event.clientX - box.left) * scale;
    if (x < left || x > right || !data.time_ns.length) { hide(); return; }
    var at = (x - left) / (right - left) * data.end_ns, low = 0, high = data.time_ns.length;
    while (low < high) { var middle = (low + high) >> 1; if (data.time_ns[middle] <= at) low = middle + 1; else high = middle; }
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
  svg.addEventListener("mousemove", show);
  svg.addEventListener("mouseleave", hide);
})();
"""
