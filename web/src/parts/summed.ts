/** Rows of a table put together by what they have in common. */

import { type ColumnFacts, Columns, type Value } from "../source/source";

/**
 * Add up numbers of those rows that agree in some texts.
 *
 * @param table The rows.
 * @param keys The columns with the texts.
 * @param sums The columns with the numbers.
 * @param chosen Which rows count.
 * @param share The column of which each row's share of the sum is given, as a column `share`.
 * @param most Columns of which the value of the row with the largest first sum is kept.
 */
export function summed(
  table: Columns,
  keys: readonly string[],
  sums: readonly string[],
  chosen: (row: number) => boolean,
  share: string,
  most: readonly string[] = [],
): Columns {
  const texts = keys.map((name) => table.values(name));
  const numbers = sums.map((name) => table.numbers(name));
  const [first = []] = numbers;
  const groups = new Map<string, { row: number; best: number; sums: number[] }>();
  for (let row = 0; row < table.rows; row++) {
    if (!chosen(row)) continue;
    const key = JSON.stringify(texts.map((values) => values[row]));
    const group = groups.get(key) ?? { row, best: row, sums: sums.map(() => 0) };
    groups.set(key, group);
    if ((first[row] ?? 0) > (first[group.best] ?? 0)) group.best = row;
    group.sums = group.sums.map((sum, place) => sum + (numbers[place]?.[row] ?? 0));
  }
  const rows = [...groups.values()];
  const made = new Map<ColumnFacts, ArrayLike<Value>>();
  const add = (name: string, value: (group: (typeof rows)[number]) => Value | undefined) => {
    const known = table.facts.find((column) => column.name === name);
    if (known)
      made.set(
        known,
        rows.map((group) => value(group) ?? null),
      );
  };
  for (const name of keys) add(name, ({ row }) => table.values(name)[row]);
  sums.forEach((name, place) => {
    add(name, (group) => group.sums[place]);
  });
  for (const name of most) add(name, ({ best }) => table.values(name)[best]);
  const shares = rows.map((group) => group.sums[sums.indexOf(share)] ?? 0);
  const whole = shares.reduce((sum, value) => sum + value, 0);
  made.set(
    { name: "share", unit: "%", meaning: "Its share of all rows together; adds up to 100.", numeric: true },
    shares.map((value) => (whole > 0 ? (100 * value) / whole : null)),
  );
  return new Columns(made);
}
