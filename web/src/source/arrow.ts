/** Reads tables as the server writes them: an Arrow stream with one batch of numbers, truth values and texts. */

import { type ColumnFacts, Columns, type Held, type Value } from "./source";

/** Arrow's numbers of messages and types. */
const SCHEMA = 1;
const DICTIONARY = 2;
const INTEGER = 2;
const FLOAT = 3;
const TEXT = 5;
const TRUTH = 6;

const INTEGERS = {
  8: [Uint8Array, Int8Array],
  16: [Uint16Array, Int16Array],
  32: [Uint32Array, Int32Array],
  64: [BigUint64Array, BigInt64Array],
} as const;

const decoder = new TextDecoder();

/** A table of a flat buffer: what its fields hold stands elsewhere, or was left out. */
class Flat {
  readonly #at: number;

  constructor(
    readonly view: DataView<ArrayBuffer>,
    at: number,
  ) {
    this.#at = at;
  }

  byte(field: number): number {
    const place = this.place(field);
    return place && this.view.getUint8(place);
  }

  /** Of longer ones the lower half: nothing here reaches 2 GiB. */
  integer(field: number): number {
    const place = this.place(field);
    return place && this.view.getInt32(place, true);
  }

  text(field: number): string {
    const place = this.#target(field);
    return place
      ? decoder.decode(new Uint8Array(this.view.buffer, place + 4, this.view.getInt32(place, true)))
      : "";
  }

  table(field: number): Flat {
    return new Flat(this.view, this.#target(field));
  }

  tables(field: number): Flat[] {
    return this.list(field, 4).map((place) => new Flat(this.view, this.#pointed(place)));
  }

  /** Where the parts of a list stand, each of so many bytes. */
  list(field: number, bytes: number): number[] {
    const place = this.#target(field);
    const length = place && this.view.getInt32(place, true);
    return Array.from({ length }, (_, index) => place + 4 + index * bytes);
  }

  /** Texts by name. */
  told(field: number): Map<string, string> {
    return new Map(this.tables(field).map((pair) => [pair.text(0), pair.text(1)]));
  }

  /** Where a field stands, 0 where it was left out. */
  place(field: number): number {
    const { view } = this;
    const at = this.#at;
    const fields = at - view.getInt32(at, true);
    const entry = 4 + 2 * field;
    const offset = entry < view.getUint16(fields, true) ? view.getUint16(fields + entry, true) : 0;
    return offset && at + offset;
  }

  #target(field: number): number {
    const place = this.place(field);
    return place && this.#pointed(place);
  }

  #pointed(place: number): number {
    return place + this.view.getInt32(place, true);
  }
}

/** The columns of a batch, one after the other. */
class Batch {
  readonly rows: number;
  readonly #nodes: number[];
  readonly #buffers: number[];
  readonly #view: DataView<ArrayBuffer>;
  readonly #body: number;

  constructor(view: DataView<ArrayBuffer>, body: number, batch: Flat) {
    this.#view = view;
    this.#body = body;
    this.rows = batch.integer(0);
    this.#nodes = batch.list(1, 16);
    this.#buffers = batch.list(2, 16);
  }

  /** What reads the next column: numbers of a type, truth values or texts. */
  next(type: number, kind?: Flat): () => ArrayLike<Value> {
    const nulls = this.#view.getInt32((this.#nodes.shift() ?? 0) + 8, true);
    const valid = this.#buffer();
    const at = this.#buffer();
    const letters = type === TEXT ? this.#buffer() : 0;
    return () => {
      const values = this.#read(type, at, letters, kind);
      return nulls ? Array.from(values, (value, row) => (this.#bit(valid, row) ? value : null)) : values;
    };
  }

  #read(type: number, at: number, letters: number, kind?: Flat): ArrayLike<Value> {
    const { rows } = this;
    const view = this.#view;
    const { buffer } = view;
    if (type === FLOAT) return new (kind?.byte(0) === 1 ? Float32Array : Float64Array)(buffer, at, rows);
    if (type === TRUTH) return Array.from({ length: rows }, (_, row) => this.#bit(at, row));
    if (type === TEXT)
      return Array.from({ length: rows }, (_, row) => {
        const [from, to] = [view.getInt32(at + 4 * row, true), view.getInt32(at + 4 * row + 4, true)];
        return decoder.decode(new Uint8Array(buffer, letters + from, to - from));
      });
    const [unsigned, signed] = INTEGERS[(kind?.integer(0) ?? 32) as keyof typeof INTEGERS];
    const values = new (kind?.byte(1) ? signed : unsigned)(buffer, at, rows);
    return values.BYTES_PER_ELEMENT === 8
      ? Float64Array.from(values as BigInt64Array, Number)
      : (values as Int32Array);
  }

  #bit(at: number, row: number): boolean {
    return ((this.#view.getUint8(at + (row >> 3)) >> (row & 7)) & 1) === 1;
  }

  #buffer(): number {
    return this.#body + this.#view.getInt32(this.#buffers.shift() ?? 0, true);
  }
}

/** The table of a stream; `total` where it is only the first of so many rows. */
export function tableOf(stream: ArrayBuffer, total?: number): Columns {
  const view = new DataView(stream);
  const dictionaries = new Map<number, () => string[]>();
  let schema: Flat | undefined;
  let batch: Batch | undefined;
  // A message is a mark, its size, what it is, and a body; the last one has no size.
  for (let at = 0; at + 8 < stream.byteLength && view.getInt32(at + 4, true); ) {
    const body = at + 8 + view.getInt32(at + 4, true);
    const message = new Flat(view, at + 8 + view.getInt32(at + 8, true));
    const header = message.table(2);
    const kind = message.byte(1);
    if (kind === SCHEMA) schema = header;
    else if (kind === DICTIONARY)
      dictionaries.set(
        header.integer(0),
        new Batch(view, body, header.table(1)).next(TEXT) as () => string[],
      );
    else batch = new Batch(view, body, header);
    at = body + message.integer(3);
  }
  const columns = schema?.tables(1).map((field): [ColumnFacts, Held] => {
    const told = field.told(6);
    const type = field.byte(2);
    const dictionary = field.place(4) ? field.table(4) : undefined;
    const facts = {
      name: field.text(0),
      unit: told.get("unit") ?? "",
      meaning: told.get("meaning") ?? "",
      numeric: !dictionary && (type === INTEGER || type === FLOAT),
    };
    const values = dictionary ? batch?.next(INTEGER, dictionary.table(1)) : batch?.next(type, field.table(3));
    const texts = dictionary && dictionaries.get(dictionary.integer(0));
    if (!values || !texts) return [facts, values ?? []];
    return [facts, () => ({ codes: values() as ArrayLike<number>, texts: texts() })];
  });
  return new Columns(new Map(columns), total, batch?.rows, schema?.told(2));
}
