/** The local server as a source. */

import { tableOf } from "./arrow";
import {
  type Columns,
  type Query,
  type Source,
  SourceError,
  type SpanFacts,
  spelled,
  type WindowQuery,
} from "./source";

export class ServerSource implements Source {
  readonly served = true;

  /** `trace` is the number of the trace among those that the server has open; `job` says that it is the summaries of a job instead. */
  constructor(
    readonly trace: number,
    readonly job = false,
  ) {}

  async info<T>(path: string, query?: Query): Promise<T> {
    return (await requested(this.download(path, query))).json() as Promise<T>;
  }

  async table(path: string, query?: Query): Promise<Columns> {
    const response = await requested(this.download(path, query));
    const total = response.headers.get("X-Total-Rows");
    return tableOf(new Uint8Array(await response.arrayBuffer()), total === null ? undefined : Number(total));
  }

  window({ tracks, ...window }: WindowQuery): Promise<Columns> {
    return this.table("window", { ...window, tracks: tracks.join() });
  }

  async counters({ tracks, ...window }: WindowQuery): Promise<Columns[]> {
    const all = await this.table("counter", { ...window, track: tracks.join() });
    const track = all.numbers("track");
    return tracks.map((one) => all.where((row) => track[row] === one));
  }

  span(id: number): Promise<SpanFacts> {
    return this.info(`span/${id}`);
  }

  has(path: string): boolean {
    return this.job === /^ranks\b/.test(path);
  }

  download(path: string, query?: Query): string {
    return `api/${this.trace}/${spelled(path, query)}`;
  }
}

/** Learns which traces are open now; set where the list of them is. */
export let lookAgain = async (): Promise<void> => {};

export function onLookAgain(look: () => Promise<void>): void {
  lookAgain = look;
}

/** The response of the server to a request. */
export async function requested(address: string, options: RequestInit = {}): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new SourceError("The server does not respond. Is `kinetoscope view` still running?");
  }
  if (response.ok) return response;
  const text = await response.text();
  let message = text || `The server responded with status ${response.status}.`;
  try {
    message = (JSON.parse(text) as { error: string }).error;
  } catch {
    // Then it is no error of ours, but shown as it came.
  }
  throw new SourceError(message);
}
