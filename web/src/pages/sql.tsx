/** Questions in SQL about the tables of the trace. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Nothing, Problem, Shown, useColumns, useJson, useSource } from "../parts/answer";
import { Table } from "../parts/table";
import { change, go, route } from "../router";
import type { Columns } from "../source/source";
import { Editor } from "../sql/editor";
import { type About, TableList } from "../sql/table-list";
import * as units from "../units";
import "../sql/sql.css";

export function Sql() {
  const about = useJson<About>("sql/about");
  return <Shown answer={about}>{(value) => <Asking about={value} />}</Shown>;
}

function Asking(props: { about: About }) {
  const { about } = props;
  const source = useSource();
  const asked = route.value.query["q"] ?? "";
  const [draft, setDraft] = useState(asked);
  const [again, setAgain] = useState(0);
  const field = useRef<HTMLTextAreaElement>(null);
  // The page opens with the first example, which is run.
  const [first] = about.examples;
  useEffect(() => {
    if (!asked && first && !about.problem) change({ q: first.query }, true);
  }, []);
  // Back and forward bring their queries with them.
  useEffect(() => {
    if (asked) setDraft(asked);
  }, [asked]);
  const answer = useColumns(about.problem || !asked ? null : "sql", {
    query: asked,
    again: again || undefined,
  });

  const run = (text = draft) => {
    const wanted = text.trim();
    if (!wanted) return;
    if (wanted === asked) setAgain(again + 1);
    else change({ q: wanted, "sql.sort": undefined, "sql.find": undefined });
  };
  const choose = (query: string) => {
    setDraft(query);
    if (!about.problem) run(query);
  };
  const insert = (text: string) => {
    const { selectionStart = draft.length, selectionEnd = draft.length } = field.current ?? {};
    setDraft(draft.slice(0, selectionStart) + text + draft.slice(selectionEnd));
    field.current?.focus();
    const place = selectionStart + text.length;
    requestAnimationFrame(() => field.current?.setSelectionRange(place, place));
  };
  const table = answer.value;
  const whole = table && table.total <= about.most_csv_rows && table.about.get("all") !== "no";
  return (
    <>
      <header class="title">
        <h1>SQL</h1>
        <span class="about">
          DuckDB over the tables of this trace. It reads and changes nothing; a query gets {about.time_s} s
          and {units.bytes(about.memory_bytes)}.
        </span>
      </header>
      {about.problem && <Problem>{about.problem}</Problem>}
      <div class="sql">
        <div class="sql-left">
          <form
            class="sql-ask"
            onSubmit={(event) => {
              event.preventDefault();
              run();
            }}
          >
            <Editor
              field={field}
              value={draft}
              tables={about.tables}
              onInput={setDraft}
              onRun={() => run()}
            />
            <div class="sql-tools">
              <button type="submit" class="main" disabled={Boolean(about.problem) || !draft.trim()}>
                Run <kbd>Ctrl Enter</kbd>
              </button>
              <button
                type="button"
                disabled={!(answer.waiting && asked)}
                onClick={() => source.info("sql/stop").catch(() => undefined)}
              >
                Stop
              </button>
              <select
                aria-label="Examples"
                value=""
                onChange={(event) => {
                  const example = about.examples[Number(event.currentTarget.value)];
                  event.currentTarget.value = "";
                  if (example) choose(example.query);
                }}
              >
                <option value="">Examples…</option>
                {about.examples.map((example, place) => (
                  <option key={example.title} value={String(place)}>
                    {example.title}
                  </option>
                ))}
              </select>
              <span class="about muted" role="status">
                <ResultStatus waiting={answer.waiting && Boolean(asked)} table={table} />
              </span>
              {whole && table.rows < table.total && (
                <a class="button" href={source.download("sql/csv", { query: asked }) ?? ""} download>
                  All rows as CSV
                </a>
              )}
            </div>
          </form>
          {answer.error !== undefined ? (
            <pre class="problem mono sql-problem" role="alert">
              {answer.error}
            </pre>
          ) : table ? (
            <Result table={table} />
          ) : (
            !answer.waiting && (
              <Nothing>
                Write a query or choose an example. The tables and their columns are listed on the right:
                click a name to insert it.
              </Nothing>
            )
          )}
        </div>
        <TableList
          tables={about.tables}
          onName={insert}
          onTable={(name) => choose(`from ${name} limit 1000`)}
        />
      </div>
    </>
  );
}

function Result(props: { table: Columns }) {
  const { table } = props;
  if (table.facts.length === 0) return <Nothing>The query returned no columns.</Nothing>;
  const spans = table.has("span") ? table.values("span") : undefined;
  return (
    <Table
      table={table}
      id="sql"
      columns={table.facts.map((column) => ({
        name: column.name,
        title: column.name,
        width: `minmax(${Math.max(column.numeric ? 6 : 9, column.name.length * 0.6 + 2).toFixed(1)}rem, ${column.numeric ? 1 : 2}fr)`,
      }))}
      searched={table.facts.map((column) => column.name)}
      {...(spans && {
        onRow: (row: number) => {
          if (spans[row] !== null) go("timeline", { span: String(spans[row]) });
        },
      })}
    />
  );
}

function ResultStatus(props: { waiting: boolean; table: Columns | undefined }) {
  const { waiting, table } = props;
  if (waiting) return <>Running…</>;
  if (!table) return null;
  const time = units.time(Number(table.about.get("elapsed_ms") ?? 0) * 1e6);
  const rows =
    table.about.get("all") === "no" ? `more than ${units.count(table.total)}` : units.count(table.total);
  return (
    <>
      {rows} {table.total === 1 ? "row" : "rows"} in {time}
    </>
  );
}
