/** Tables as Arrow streams: numbers, truth values and texts. */

import { type Column, Type, tableFromIPC } from "@uwdata/flechette";
import { type Coded, type ColumnFacts, Columns, type Stored, type Value } from "./source";

/** The table of a stream; `total` where it is only the first of so many rows. */
export function tableOf(stream: Uint8Array<ArrayBuffer>, total?: number): Columns {
  // Otherwise flechette refuses integers that are not exact as numbers of a page; the nearest one will do.
  const table = tableFromIPC(stream, { useBigInt: true });
  const columns = table.schema.fields.map((field, index): [ColumnFacts, Stored] => {
    const column = table.getChildAt(index) as Column<unknown>;
    const facts = {
      name: field.name,
      unit: field.metadata?.get("unit") ?? "",
      meaning: field.metadata?.get("meaning") ?? "",
      numeric: field.type.typeId === Type.Int || field.type.typeId === Type.Float,
    };
    return [facts, { at: (row) => plain(column.at(row)), read: () => read(column) }];
  });
  return new Columns(new Map(columns), total, table.numRows, table.schema.metadata ?? undefined);
}

function plain(value: unknown): Value {
  return typeof value === "bigint" ? Number(value) : (value as Value);
}

function read(column: Column<unknown>): ArrayLike<Value> | Coded {
  const [batch] = column.data;
  if (batch && column.type.typeId === Type.Dictionary) {
    // The types of the library lack what its batches of dictionaries have.
    const { cache, values: keys } = batch as unknown as { cache: string[]; values: Int32Array };
    const codes = batch.nullCount
      ? Array.from({ length: batch.length }, (_, row) => (batch.isValid(row) ? (keys[row] as number) : -1))
      : keys.subarray(0, batch.length);
    return { codes, texts: cache };
  }
  const values = column.toArray() as ArrayLike<unknown>;
  if (values instanceof BigInt64Array || values instanceof BigUint64Array)
    return Float64Array.from(values, Number);
  return column.nullCount ? Array.from(values, plain) : (values as ArrayLike<Value>);
}
