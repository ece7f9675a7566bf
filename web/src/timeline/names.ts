/** Names as they fit into boxes: what tells them apart comes first. */

/** What is not worth a look at the head of a kernel's template arguments. */
const GENERIC =
  /^(?:bool|char|short|int|long|float|double|half|unsigned|void|const|true|false|decltype|ul|ull|ll|B?[Ff]loat16|Half|__\w*|OpaqueType|lambda|at|c10|std|native|detail|internal|\d.*)$/;
const MOST = 400;

/** Control characters, and those that turn the direction of the text after them. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the ones to take out
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+/g;

/** One line that can be drawn, whatever the trace holds. */
export function plain(name: string): string {
  return name.slice(0, MOST).replace(HIDDEN, " ").trim();
}

/** What torch's compiler adds to the names of all that it times. */
const TIMED = / \(dynamo_timed\)$/;

/** The name of a box: as it is, or shorter for names that a compiler or an interpreter made. */
export function boxName(kind: string, name: string): string {
  const text = plain(name);
  if (kind === "kernel") return kernelName(text);
  if (kind === "python") return pythonName(text);
  return text.replace(TIMED, "");
}

/** `elementwise_kernel ‹add›` for the name a compiler gave a kernel. */
export function kernelName(name: string): string {
  const text = name.replace(/\(anonymous namespace\)/g, "anonymous").replace(/^void /, "");
  const angle = text.indexOf("<");
  const head = (angle < 0 ? text : text.slice(0, angle)).replace(/\(.*$/, "");
  const base = lastName(head) || text;
  if (angle < 0) return base;
  const inner = text.slice(angle + 1).match(/[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*/g) ?? [];
  const telling = inner
    .map(lastName)
    .find(
      (word) =>
        !GENERIC.test(word) &&
        word !== base &&
        word.length > 1 &&
        !/^gpu_kernel_impl|^unrolled_|_t$/.test(word),
    );
  if (!telling) return base;
  // CUTLASS gives all its kernels one name.
  return /^[Kk]ernel\d*$/.test(base) ? telling : `${base} ‹${telling}›`;
}

/** `forward (model.py:12)` for a call recorded as `src/model.py(12): forward`. */
export function pythonName(name: string): string {
  const found = /^(.*)\((\d+)\): (.+)$/.exec(name);
  if (!found) return name;
  const [, path = "", line = "", called = ""] = found;
  return `${called}  ${path.slice(Math.max(path.lastIndexOf("/"), path.lastIndexOf("\\")) + 1)}:${line}`;
}

/** What torch puts before the names of all backward functions, and of all steps of optimizers. */
const COMMON = /^(?:autograd::engine::evaluate_function: |Optimizer\.\w+#)(?=\w)/;

/** The name without what it is in, for boxes that have no room for both. */
export function lastName(whole: string): string {
  if (whole.startsWith("ProfilerStep#")) return whole.slice("ProfilerStep".length);
  const name = whole.replace(COMMON, "");
  const cut = name.lastIndexOf("::");
  return cut >= 0 && cut + 2 < name.length ? name.slice(cut + 2) : name;
}

/** Of fewer letters than these the beginning tells more than both ends. */
const LEAST_CUT_IN_MIDDLE = 9;

/** Finds how much of a text fits, from the widths of its letters. */
export class Fitting {
  readonly #widths = new Map<string, number>();

  readonly #measure: (text: string) => number;
  /** `measure` gives the width of a text in the font that will draw it. */
  constructor(measure: (text: string) => number) {
    this.#measure = measure;
  }

  width(text: string): number {
    let sum = 0;
    for (const letter of text) sum += this.#letter(letter);
    return sum;
  }

  /** The text, the end of it that tells most, or it cut in its middle; empty where nothing would be read. */
  fit(text: string, room: number): string {
    if (room < 14) return "";
    if (this.#upTo(text, room) === text.length) return text;
    const short = lastName(text);
    if (short.length < text.length && this.#upTo(short, room) === short.length) return short;
    const left = room - this.#letter("…");
    const kept = this.#upTo(short, left);
    if (kept < LEAST_CUT_IN_MIDDLE) return kept < 2 ? "" : `${short.slice(0, kept)}…`;
    // A file with its line stays whole where there is room for it.
    const [place = ""] = / {2}\S+:\d+$/.exec(short) ?? [];
    const tail = place && this.width(place) < left * 0.75 ? place : short.slice(-Math.floor(kept / 3));
    return `${short.slice(0, this.#upTo(short, left - this.width(tail)))}…${tail}`;
  }

  #upTo(text: string, room: number): number {
    let left = room;
    let place = 0;
    for (const letter of text) {
      left -= this.#letter(letter);
      if (left < 0) return place;
      place += letter.length;
    }
    return text.length;
  }

  #letter(letter: string): number {
    let width = this.#widths.get(letter);
    if (width === undefined) {
      width = this.#measure(letter);
      this.#widths.set(letter, width);
    }
    return width;
  }
}
