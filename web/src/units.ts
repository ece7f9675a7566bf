/** Numbers as people read them, with a unit: what src/kinetoscope/model/units.py does, tested with the same values. */

type Units = readonly (readonly [scale: number, name: string])[];
type Known = number | null | undefined;

export const TIME_UNITS: Units = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
];

const BYTE_UNITS: Units = [
  [2 ** 60, "EiB"],
  [2 ** 50, "PiB"],
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
  [1, "B"],
];

const COUNT_UNITS: Units = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** Times from here on are written in minutes and hours. */
const CLOCK_NS = 100e9;

const NONE = "–";

function isNumber(value: Known): value is number {
  return value != null && Number.isFinite(value);
}

/** Three significant digits, never in powers of ten; a whole number has no decimals. */
function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || Number.isInteger(value) ? 0 : size >= 9.995 ? 1 : 2);
}

/** A value in the largest of some units that it reaches; in the last one, if in none. */
function inUnits(value: Known, units: Units, last: string, after = ""): string {
  if (!isNumber(value)) return NONE;
  // 999.96 µs reads as 1.00 ms.
  const [scale, name] = units.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? [1, last];
  return `${digits(value / scale)} ${name}${after}`.trimEnd();
}

/** `1.25 ms` for 1_250_000; `1 min 40 s` from 100 s on. */
export function time(ns: Known): string {
  if (!isNumber(ns) || Math.abs(ns) < CLOCK_NS) return inUnits(ns, TIME_UNITS, "ns");
  const seconds = Math.floor(Math.abs(ns) / 1e9 + 0.5);
  const hours = Math.floor(seconds / 3600);
  const two = (value: number) => String(value).padStart(2, "0");
  const minutes = Math.floor(seconds / 60) % 60;
  const text = hours ? `${hours} h ${two(minutes)} min` : `${minutes} min ${two(seconds % 60)} s`;
  return ns < 0 ? `-${text}` : text;
}

/** `1.25 MiB` for 1_310_720. */
export function bytes(count: Known): string {
  return inUnits(count, BYTE_UNITS, "B");
}

/** `1.23 G` for 1_230_000_000, with a unit behind it such as `FLOP`. */
export function scaled(value: Known, unit = ""): string {
  return inUnits(value, COUNT_UNITS, "", unit);
}

/** `1,234,567`: a count, exactly. */
export function count(value: Known): string {
  return isNumber(value) ? value.toLocaleString("en-US", { maximumFractionDigits: 2 }) : NONE;
}

/** `1 step`, `1,234 steps`: a count with its noun. */
export function counted(value: Known, one: string, plural = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : plural}`;
}

/** `28.7 %`, or `<0.1 %`. */
export function percent(value: Known): string {
  if (!isNumber(value)) return NONE;
  if (value > 0 && value < 0.05) return "<0.1 %";
  return `${value.toFixed(value >= 99.95 || value === 0 ? 0 : 1)} %`;
}

/** A value of a column by its unit. */
export function shown(value: unknown, unit: string, name = ""): string {
  if (value == null) return NONE;
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (unit === "ns") return time(value);
    if (unit === "bytes") return bytes(value);
    if (unit === "%") return percent(value);
    if (unit === "GB/s") return scaled(value * 1e9, "B/s");
    if (unit === "FLOP/s" || unit === "FLOP/byte") return scaled(value, unit);
    if (unit === "FLOP" || name.endsWith("flops")) return scaled(value, "FLOP");
    if (unit === "") return count(value);
  }
  return String(value);
}

/** The name of a column as a heading: `self_ns` is `Self`, since its values show their unit. */
export function heading(name: string, unit: string): string {
  let text = name;
  if (unit === "ns") text = text.replace(/_?ns$/, "");
  if (unit === "%") text = text.replace(/_percent$/, " %");
  text =
    text
      .replace(/_per_s$/, "/s")
      .replaceAll("_", " ")
      .trim() || name;
  return text.charAt(0).toUpperCase() + text.slice(1);
}
