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
  const kept = most.map((name) => table.values(name));
  const groups = new Map<string, { row: number; best: number; sums: number[] }>();
  for (let row = 0; row < table.rows; row++) {
    if (!chosen(row)) continue;
    const key = JSON.stringify(texts.map((values) => values[row]));
    let group = groups.get(key);
    if (!group) {
      group = { row, best: row, sums: sums.map(() => 0) };
      groups.set(key, group);
    }
    const first = numbers[0];
    if (first && (first[row] ?? 0) > (first[group.best] ?? 0)) group.best = row;
    for (let place = 0; place < numbers.length; place++)
      group.sums[place] = (group.sums[place] ?? 0) + (numbers[place]?.[row] ?? 0);
  }
  const rows = [...groups.values()];
  const facts = new Map(table.facts.map((column) => [column.name, column]));
  const made = new Map<ColumnFacts, ArrayLike<Value>>();
  const add = (name: string, values: ArrayLike<Value>) => {
    const known = facts.get(name);
    if (known) made.set(known, values);
  };
  keys.forEach((name, place) => {
    add(
      name,
      rows.map((group) => texts[place]?.[group.row] ?? null),
    );
  });
  sums.forEach((name, place) => {
    add(
      name,
      rows.map((group) => group.sums[place] ?? 0),
    );
  });
  most.forEach((name, place) => {
    add(
      name,
      rows.map((group) => kept[place]?.[group.best] ?? null),
    );
  });
  const place = sums.indexOf(share);
  const whole = rows.reduce((sum, group) => sum + (group.sums[place] ?? 0), 0);
  made.set(
    { name: "share", unit: "%", meaning: "Its share of all rows together; adds up to 100.", numeric: true },
    rows.map((group) => (whole > 0 ? (100 * (group.sums[place] ?? 0)) / whole : null)),
  );
  return new Columns(made);
}
