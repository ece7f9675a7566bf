/** Answers of the local server. */

import { tableOf } from "./arrow";
import { AnswerError, type Columns, type Query, type Source, spelled } from "./source";

export class HttpSource implements Source {
  readonly served = true;

  readonly #trace: number;
  /** `trace` is the number of the trace among those the server was given. */
  constructor(
    trace: number,
    readonly perfettoUi?: string,
  ) {
    this.#trace = trace;
  }

  async json<T>(path: string, query?: Query): Promise<T> {
    return (await (await this.#answer(path, query)).json()) as T;
  }

  async columns(path: string, query?: Query): Promise<Columns> {
    const response = await this.#answer(path, query);
    const total = response.headers.get("X-Total-Rows");
    return tableOf(await response.arrayBuffer(), total === null ? undefined : Number(total));
  }

  has(): boolean {
    return true;
  }

  download(path: string, query?: Query): string {
    return this.#address(path, query);
  }

  #address(path: string, query?: Query): string {
    return `api/${this.#trace}/${spelled(path, query)}`;
  }

  async #answer(path: string, query?: Query): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(this.#address(path, query));
    } catch {
      throw new AnswerError("The server does not answer. Is `kinetoscope view` still running?");
    }
    if (response.ok) return response;
    const told = await response.text();
    let message = `The server answered ${response.status}.`;
    try {
      message = (JSON.parse(told) as { error: string }).error;
    } catch {
      if (told) message = told;
    }
    throw new AnswerError(message);
  }
}
