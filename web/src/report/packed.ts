/** Numbers and texts as a report packs them; the other half of `viewer/_packed.py`. */

import { AnswerError } from "../source/source";

/** `[at, length]` of bytes; `[at, rows, bytes, rising, wide]` of integers. */
export type Directory = Readonly<Record<string, readonly number[]>>;

export type Integers = Int32Array | Float64Array;

/** Letters as they stand in the page, unpacked by the browser. */
export async function unpacked(letters: string): Promise<Uint8Array<ArrayBuffer>> {
  try {
    const text = atob(letters);
    const bytes = new Uint8Array(text.length);
    for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  } catch {
    throw new AnswerError("The file of this report is not whole.");
  }
}

/** Parts that are unpacked together; each is read once, when somebody asks for it. */
export class Pack {
  readonly #made = new Map<string, unknown>();
  readonly #body: Uint8Array<ArrayBuffer>;
  readonly #directory: Directory;

  constructor(body: Uint8Array<ArrayBuffer>, directory: Directory) {
    this.#body = body;
    this.#directory = directory;
  }

  has(name: string): boolean {
    return name in this.#directory;
  }

  /** What is made of a part, once. */
  once<Made>(name: string, make: () => Made): Made {
    const made = (this.#made.get(name) as Made | undefined) ?? make();
    this.#made.set(name, made);
    return made;
  }

  bytes(name: string): Uint8Array<ArrayBuffer> {
    const [at = 0, length = 0] = this.#directory[name] ?? [];
    return this.#body.slice(at, at + length);
  }

  json<T>(name: string): T {
    return this.once(name, () => JSON.parse(new TextDecoder().decode(this.bytes(name))) as T);
  }

  integers(name: string): Integers {
    return this.once(name, () => this.#unfolded(name));
  }

  /** Distances to what is before, as places; -1 for 0. */
  before(name: string): Int32Array {
    const places = () => Int32Array.from(this.integers(name), (far, place) => (far ? place - far : -1));
    return this.once(`${name} before`, places);
  }

  #unfolded(name: string): Integers {
    const [at = 0, rows = 0, bytes = 0, rising = 0, wide = 0] = this.#directory[name] ?? [];
    const values = wide || (rising && bytes > 4) ? new Float64Array(rows) : new Int32Array(rows);
    const body = this.#body;
    if (bytes <= 3) {
      const middle = bytes > 1 ? rows : 0;
      const high = bytes > 2 ? 2 * rows : 0;
      for (let row = 0; row < rows; row++) {
        const place = at + row;
        let folded = body[place] as number;
        if (middle) folded |= (body[place + middle] as number) << 8;
        if (high) folded |= (body[place + high] as number) << 16;
        values[row] = (folded >>> 1) ^ -(folded & 1);
      }
    } else {
      for (let row = 0; row < rows; row++) {
        let folded = 0;
        for (let byte = bytes - 1; byte >= 0; byte--)
          folded = folded * 256 + (body[at + byte * rows + row] as number);
        values[row] = folded % 2 ? -(folded + 1) / 2 : folded / 2;
      }
    }
    if (rising) {
      let sum = 0;
      for (let row = 0; row < rows; row++) {
        sum += values[row] as number;
        values[row] = sum;
      }
    }
    return values;
  }

  floats(name: string): Float64Array {
    const values = this.integers(name);
    return values instanceof Float64Array ? values : Float64Array.from(values);
  }
}
