/** Answers of the local server. */

import { tableOf } from "./arrow";
import { AnswerError, type Columns, type Query, type Source, spelled } from "./source";

export class HttpSource implements Source {
  readonly served = true;

  /** `trace` is the number of the trace among those the server was given. */
  constructor(
    readonly trace: number,
    readonly perfettoUi?: string,
  ) {}

  async json<T>(path: string, query?: Query): Promise<T> {
    return (await answer(this.download(path, query))).json() as Promise<T>;
  }

  async columns(path: string, query?: Query): Promise<Columns> {
    const response = await answer(this.download(path, query));
    const total = response.headers.get("X-Total-Rows");
    return tableOf(await response.arrayBuffer(), total === null ? undefined : Number(total));
  }

  has(): boolean {
    return true;
  }

  download(path: string, query?: Query): string {
    return `api/${this.trace}/${spelled(path, query)}`;
  }
}

/** What the server says to a request. */
export async function answer(address: string): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address);
  } catch {
    throw new AnswerError("The server does not answer. Is `kinetoscope view` still running?");
  }
  if (response.ok) return response;
  const told = await response.text();
  let message = told || `The server answered ${response.status}.`;
  try {
    message = (JSON.parse(told) as { error: string }).error;
  } catch {
    // Then it is no error of ours, but told as it came.
  }
  throw new AnswerError(message);
}
