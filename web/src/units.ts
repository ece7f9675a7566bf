/** Numbers as people read them: three or four digits and a unit. */

const TIME_UNITS = [
  [1e9, "s"],
  [1e6, "ms"],
  [1e3, "µs"],
  [1, "ns"],
] as const;

const BYTE_UNITS = [
  [2 ** 40, "TiB"],
  [2 ** 30, "GiB"],
  [2 ** 20, "MiB"],
  [2 ** 10, "KiB"],
  [1, "B"],
] as const;

const COUNT_UNITS = [
  [1e15, "P"],
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
] as const;

const NONE = "–";

/** Three significant digits, never in powers of ten. */
function digits(value: number): string {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || Number.isInteger(value) ? 0 : size >= 9.995 ? 1 : 2);
}

/** `1.25 ms` for 1_250_000. */
export function time(ns: number | null | undefined): string {
  if (ns === null || ns === undefined || Number.isNaN(ns)) return NONE;
  if (ns === 0) return "0";
  const size = Math.abs(ns);
  // 999.96 µs reads as 1.00 ms.
  const [unit, name] = TIME_UNITS.find(([unit]) => size >= unit * 0.9995) ?? [1, "ns"];
  return `${digits(ns / unit)} ${name}`;
}

/** `1.25 MiB` for 1_310_720. */
export function bytes(count: number | null | undefined): string {
  if (count === null || count === undefined || Number.isNaN(count)) return NONE;
  if (count === 0) return "0";
  const size = Math.abs(count);
  const [unit, name] = BYTE_UNITS.find(([unit]) => size >= unit * 0.9995) ?? [1, "B"];
  return `${digits(count / unit)} ${name}`;
}

/** `1,234,567`: a count, exactly. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  return value.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

/** `1.23 G` for 1_230_000_000, with a unit behind it such as `FLOP`. */
export function scaled(value: number | null | undefined, unit = ""): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value === 0) return "0";
  const [scale, name] = COUNT_UNITS.find(([scale]) => Math.abs(value) >= scale * 0.9995) ?? [1, ""];
  return `${digits(value / scale)} ${name}${unit}`.trimEnd();
}

export function percent(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return NONE;
  if (value > 0 && value < 0.05) return "<0.1 %";
  return `${value >= 99.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

/** A value of a column by its unit. */
export function shown(value: unknown, unit: string, name = ""): string {
  if (value === null || value === undefined) return NONE;
  if (typeof value === "number") {
    if (unit === "ns") return time(value);
    if (unit === "bytes") return bytes(value);
    if (unit === "%") return percent(value);
    if (unit === "GB/s") return scaled(value * 1e9, "B/s");
    if (unit === "FLOP/s" || unit === "FLOP/byte") return scaled(value, unit);
    if (unit === "FLOP" || name.endsWith("flops")) return scaled(value, "FLOP");
    return unit === "" ? count(value) : String(value);
  }
  if (typeof value === "boolean") return value ? "yes" : "no";
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
