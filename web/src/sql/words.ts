/** What a query is made of: its parts for coloring, and what the word that is being typed may become. */

export type Kind = "keyword" | "name" | "text" | "number" | "comment" | "other";

export interface Piece {
  text: string;
  kind: Kind;
}

export const KEYWORDS: ReadonlySet<string> = new Set(
  `all and any as asc between by case cast count cross cume_dist desc describe distinct else end exists false filter first from full
  group having ilike in inner interval is join lag last lead left like limit list max mean median min not null nulls offset on or
  order outer over partition percentile_cont pivot qualify quantile_cont rank regexp_matches right round row_number sample select
  sum then true union unnest unpivot using values when where window with within`.split(/\s+/),
);

const PIECE =
  /--[^\n]*|\/\*[\s\S]*?(?:\*\/|$)|'(?:[^']|'')*(?:'|$)|"[^"]*(?:"|$)|\d[\d_.]*(?:e[+-]?\d+)?|[a-z_]\w*/giy;

/** The parts of a query; together they are the query. `names` are the tables and columns that there are. */
export function pieces(query: string, names: ReadonlySet<string>): Piece[] {
  const found: Piece[] = [];
  const add = (text: string, kind: Kind) => {
    const last = found.at(-1);
    if (last?.kind === kind && kind === "other") last.text += text;
    else found.push({ text, kind });
  };
  for (let at = 0; at < query.length; ) {
    PIECE.lastIndex = at;
    const text = PIECE.exec(query)?.[0] ?? query.charAt(at);
    add(text, kindOf(text, names));
    at += text.length;
  }
  return found;
}

function kindOf(text: string, names: ReadonlySet<string>): Kind {
  if (/^(?:--|\/\*)/.test(text)) return "comment";
  if (text.startsWith("'")) return "text";
  if (/^\d/.test(text)) return "number";
  if (names.has(text.replaceAll('"', ""))) return "name";
  return KEYWORDS.has(text.toLowerCase()) ? "keyword" : "other";
}

export interface Table {
  name: string;
  columns: readonly { name: string }[];
}

const MOST = 8;

/** What the word before a place may become: columns of the tables that the query names first, then tables, then keywords. */
export function completions(query: string, place: number, tables: readonly Table[]): string[] {
  const word = wordBefore(query, place).toLowerCase();
  const before = query.slice(0, place - word.length);
  // Within a text or a comment nothing is proposed.
  const last = pieces(query.slice(0, place), new Set()).at(-1)?.kind;
  if (!word || last === "text" || last === "comment" || /\w$/.test(query.slice(place, place + 1))) return [];
  const used = tables.filter(({ name }) => new RegExp(`\\b(?:from|join)\\s+${name}\\b`, "i").test(query));
  const columns = (used.length ? used : tables).flatMap((table) => table.columns.map(({ name }) => name));
  const names = tables.map(({ name }) => name);
  const sources = /\b(?:from|join)\s+$/i.test(before) ? [names] : [columns, names, [...KEYWORDS]];
  const all = new Set(sources.flat());
  return [...all].filter((one) => one.startsWith(word) && one !== word).slice(0, MOST);
}

/** The word that ends at a place. */
export function wordBefore(query: string, place: number): string {
  return /[a-z_]\w*$/i.exec(query.slice(0, place))?.[0] ?? "";
}
