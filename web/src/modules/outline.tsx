/** The tree of modules as a table: rows open and close, siblings sort, the filter keeps what is around what it finds. */

import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { save } from "../parts/save";
import { asCsv, asTabs } from "../parts/table-rows";
import { change, route } from "../router";
import type { Columns } from "../source/source";
import { plain } from "../timeline/names";
import * as units from "../units";
import { byColumn, inSight, matching, openedAtFirst, rowsAround, shortPath, type Tree } from "./tree";

export interface OutlineColumn {
  name: string;
  title: string;
  width: string;
  bar?: boolean;
}

const ROW_REM = 1.9;
const BEYOND = 12;
const FIRST_ROWS = 40;
const FIRST_ORDER = "-total_ns";

export function Outline(props: {
  table: Columns;
  tree: Tree;
  columns: readonly OutlineColumn[];
  chosen: number;
  onChoose: (row: number, byKey: boolean) => void;
  tools?: ComponentChildren;
}) {
  const { table, tree, columns, chosen, onChoose } = props;
  const query = route.value.query;
  const text = query["modules.find"] ?? "";
  const order = query["modules.sort"] ?? FIRST_ORDER;
  const [sortName, descending] = order.startsWith("-") ? [order.slice(1), true] : [order, false];
  const [opened, setOpened] = useState<ReadonlySet<number>>(() => openedAtFirst(tree, FIRST_ROWS));
  useEffect(() => {
    const around = rowsAround(tree, tree.parent[chosen] ?? -1);
    if (chosen >= 0 && around.some((row) => !opened.has(row))) setOpened(new Set([...opened, ...around]));
  }, [tree, chosen]);

  const match = useMemo(
    () => matching(tree, [table.values("path"), table.values("class")], text),
    [tree, table, text],
  );
  const rows = useMemo(() => {
    const compare = table.has(sortName)
      ? byColumn(table.values(sortName), descending)
      : (a: number, b: number) => a - b;
    return inSight(tree, opened, match, compare);
  }, [tree, table, opened, match, sortName, descending]);
  const largest = useMemo(
    () => new Map(columns.map((column) => [column.name, most(table, column.name)])),
    [table, columns],
  );
  const facts = useMemo(() => new Map(table.facts.map((column) => [column.name, column])), [table]);

  const scroll = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, last: 60 });
  const look = () => {
    const element = scroll.current;
    if (!element) return;
    const height = ROW_REM * rem();
    const first = Math.max(0, Math.floor(element.scrollTop / height) - BEYOND);
    const last = Math.ceil((element.scrollTop + element.clientHeight) / height) + BEYOND;
    setView((before) => (before.first === first && before.last === last ? before : { first, last }));
  };
  useLayoutEffect(look, [rows]);
  useEffect(() => {
    const watcher = new ResizeObserver(look);
    if (scroll.current) watcher.observe(scroll.current);
    return () => watcher.disconnect();
  }, []);
  const place = rows.indexOf(chosen);
  useEffect(() => {
    const element = scroll.current;
    if (!element || place < 0) return;
    const height = ROW_REM * rem();
    const head = 2.1 * rem();
    if (place * height < element.scrollTop) element.scrollTop = place * height;
    else if ((place + 1) * height + head > element.scrollTop + element.clientHeight)
      element.scrollTop = (place + 1) * height + head - element.clientHeight;
  }, [place]);

  const turn = (row: number, open = !opened.has(row)) => {
    const next = new Set(opened);
    if (open) next.add(row);
    else next.delete(row);
    setOpened(next);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const go = (to: number | undefined) => to !== undefined && to >= 0 && onChoose(to, true);
    const page = Math.max(Math.floor((scroll.current?.clientHeight ?? 0) / (ROW_REM * rem())) - 2, 1);
    if (event.key === "ArrowDown") go(rows[place + 1]);
    else if (event.key === "ArrowUp") go(rows[Math.max(place - 1, 0)]);
    else if (event.key === "PageDown") go(rows[Math.min(place + page, rows.length - 1)]);
    else if (event.key === "PageUp") go(rows[Math.max(place - page, 0)]);
    else if (event.key === "Home") go(rows[0]);
    else if (event.key === "End") go(rows[rows.length - 1]);
    else if (event.key === "ArrowRight" && chosen >= 0) {
      if (!tree.held.has(chosen)) return;
      if (match || opened.has(chosen)) go(rows[place + 1]);
      else turn(chosen, true);
    } else if (event.key === "ArrowLeft" && chosen >= 0) {
      if (!match && opened.has(chosen) && tree.held.has(chosen)) turn(chosen, false);
      else go(tree.parent[chosen]);
    } else if (event.key === "Escape" && chosen >= 0) onChoose(-1, true);
    else return;
    event.preventDefault();
  };

  const tracks = `minmax(14rem, 3fr) ${columns.map((column) => column.width).join(" ")}`;
  const names = table.facts.map((column) => column.name);
  const [paths, classes] = [table.texts("path"), table.texts("class")];
  const heading = (name: string, title: string, meaning: string, numeric: boolean) => (
    <div
      key={name}
      role="columnheader"
      aria-sort={sortName === name ? (descending ? "descending" : "ascending") : "none"}
    >
      <button
        type="button"
        class={numeric ? "number" : ""}
        title={`${meaning} Click to sort what is in one module.`}
        onClick={() => {
          const first = numeric ? `-${name}` : name;
          const other = numeric ? name : `-${name}`;
          const next = order === first ? other : first;
          change({ "modules.sort": next === FIRST_ORDER ? undefined : next });
        }}
      >
        <span class="name">{title}</span>
        {sortName === name && <span aria-hidden="true">{descending ? "↓" : "↑"}</span>}
      </button>
    </div>
  );

  return (
    <section class="table modules-outline" aria-label="modules">
      <div class="bar">
        <input
          type="search"
          placeholder="Filter path or class"
          aria-label="Filter modules"
          value={text}
          onInput={(event) => change({ "modules.find": event.currentTarget.value || undefined }, true)}
        />
        <span class="count">
          {match
            ? `${units.count(match.found.size)} of ${units.count(table.rows)} modules`
            : `${units.count(table.rows)} modules`}
          {table.total > table.rows && `, the first of ${units.count(table.total)}`}
        </span>
        {props.tools}
        <div class="tools">
          <button type="button" onClick={() => setOpened(new Set(tree.held.keys()))}>
            Open all
          </button>
          <button type="button" onClick={() => setOpened(new Set())}>
            Close all
          </button>
          <button
            type="button"
            title="Copy what is shown, for a spreadsheet"
            onClick={() => navigator.clipboard?.writeText(asTabs(table, rows, names)).catch(() => undefined)}
          >
            Copy
          </button>
          <button
            type="button"
            title="Save what is shown as a file"
            onClick={() => save("modules.csv", asCsv(table, rows, names), "text/csv")}
          >
            CSV
          </button>
        </div>
      </div>
      <div
        class="scroll"
        ref={scroll}
        onScroll={look}
        onKeyDown={onKeyDown}
        role="treegrid"
        aria-rowcount={rows.length}
        aria-label="Modules; arrow keys walk, open and close"
        tabIndex={0}
      >
        <div class="head" role="row" style={{ gridTemplateColumns: tracks }}>
          {heading("path", "Module", "Its name in what holds it, and its class.", false)}
          {columns.map((column) =>
            heading(column.name, column.title, facts.get(column.name)?.meaning ?? "", true),
          )}
        </div>
        <div class="body" role="rowgroup" style={{ height: `${rows.length * ROW_REM}rem` }}>
          {rows.slice(view.first, view.last).map((row, offset) => {
            const depth = tree.depth[row] ?? 0;
            const open = match ? undefined : opened.has(row);
            const path = plain(paths[row] ?? "");
            return (
              <div
                key={row}
                class="row link"
                role="row"
                aria-level={depth + 1}
                aria-expanded={tree.held.has(row) ? (open ?? true) : undefined}
                aria-selected={row === chosen}
                onClick={() => onChoose(row, false)}
                onKeyDown={undefined}
                tabIndex={-1}
                style={{ gridTemplateColumns: tracks, top: `${(view.first + offset) * ROW_REM}rem` }}
              >
                <div
                  class="cell modules-name"
                  role="gridcell"
                  title={`${path}\n${plain(classes[row] ?? "")}`}
                >
                  <span style={{ width: `${Math.min(depth, 24) * 0.9}rem` }} />
                  {tree.held.has(row) && !match ? (
                    <button
                      type="button"
                      class="plain"
                      tabIndex={-1}
                      aria-label={open ? "Close" : "Open"}
                      onClick={(event) => {
                        event.stopPropagation();
                        turn(row);
                      }}
                    >
                      <svg data-open={open} viewBox="0 0 10 10" aria-hidden="true">
                        <path d="M3 1.5 7 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.5" />
                      </svg>
                    </button>
                  ) : (
                    <span class="modules-leaf" />
                  )}
                  <span class={match && !match.found.has(row) ? "name faint" : "name"}>
                    {depth > 0 ? shortPath(path) : path}
                    {classes[row] && classes[row] !== path && (
                      <span class="modules-class">{plain(classes[row] ?? "")}</span>
                    )}
                  </span>
                </div>
                {columns.map((column) => {
                  const value = table.values(column.name)[row] ?? null;
                  const unit = facts.get(column.name)?.unit ?? "";
                  const top = largest.get(column.name) ?? 0;
                  const share = column.bar && typeof value === "number" && top > 0 ? value / top : 0;
                  return (
                    <div
                      key={column.name}
                      class="cell number"
                      role="gridcell"
                      title={typeof value === "number" ? `${units.count(value)} ${unit}` : undefined}
                    >
                      {share > 0 && <span class="fill" style={{ width: `${Math.min(share, 1) * 100}%` }} />}
                      {value === 0 ? <span class="faint">0</span> : units.shown(value, unit, column.name)}
                    </div>
                  );
                })}
              </div>
            );
          })}
        </div>
      </div>
      {rows.length === 0 && <p class="nothing">Nothing holds “{text.slice(0, 100)}”.</p>}
    </section>
  );
}

function most(table: Columns, name: string): number {
  let found = 0;
  const values = table.values(name);
  for (let row = 0; row < values.length; row++) found = Math.max(found, Number(values[row] ?? 0));
  return found;
}

function rem(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
}
