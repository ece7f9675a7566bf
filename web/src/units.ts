/** Numbers as people read them: three or four digits and a unit. */

type Units = readonly (readonly [scale: number, name: string])[];
type Known = number | null | undefined;

const TIME_UNITS: Units = [
  [1e9, " s"],
  [1e6, " ms"],
  [1e3, " µs"],
  [1, " ns"],
];

const BYTE_UNITS: Units = [
  [2 ** 40, " TiB"],
  [2 ** 30, " GiB"],
  [2 ** 20, " MiB"],
  [2 ** 10, " KiB"],
  [1, " B"],
];

const COUNT_UNITS: Units = [
  [1e15, " P"],
  [1e12, " T"],
  [1e9, " G"],
  [1e6, " M"],
  [1e3, " k"],
];

const NONE = "–";

function isNumber(value: Known): value is number {
  return value != null && !Number.isNaN(value);
}

/** Three significant digits, never in powers of ten. */
function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || Number.isInteger(value) ? 0 : size >= 9.995 ? 1 : 2);
}

/** A value in the largest of some units that it reaches; in the last one, if in none. */
function inUnits(value: Known, units: Units, last: string, after = ""): string {
  if (!isNumber(value)) return NONE;
  if (value === 0) return "0";
  // 999.96 µs reads as 1.00 ms.
  const [scale, name] = units.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? [1, last];
  return `${digits(value / scale)}${name}${after}`.trimEnd();
}

/** `1.25 ms` for 1_250_000. */
export function time(ns: Known): string {
  return inUnits(ns, TIME_UNITS, " ns");
}

/** `1.25 MiB` for 1_310_720. */
export function bytes(count: Known): string {
  return inUnits(count, BYTE_UNITS, " B");
}

/** `1.23 G` for 1_230_000_000, with a unit behind it such as `FLOP`. */
export function scaled(value: Known, unit = ""): string {
  return inUnits(value, COUNT_UNITS, " ", unit);
}

/** `1,234,567`: a count, exactly. */
export function count(value: Known): string {
  return isNumber(value) ? value.toLocaleString("en-US", { maximumFractionDigits: 2 }) : NONE;
}

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
