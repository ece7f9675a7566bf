/** What pages with a table by name have in common: the choices above it, and what stands beside it. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Nothing, Shown, useColumns } from "../parts/answer";
import { Button } from "../parts/button";
import { Choice } from "../parts/choice";
import { change } from "../router";
import type { Columns, Query } from "../source/source";
import { close, closeOnEscape, nothingChosen } from "./panel";
import "./operators.css";

export type Option = readonly [key: string, title: string, hint?: string];

/** The title of the page, and the choice of what is listed and of how it is added up; the first of each is not named. */
export function Head(props: {
  title: string;
  /** The key in the address of what is listed. */
  what: string;
  whats: readonly Option[];
  chosen: string;
  ways: readonly Option[];
  way: string;
}) {
  const { title, what, whats, chosen, ways, way } = props;
  useEffect(closeOnEscape, []);
  return (
    <header class="title">
      <h1>{title}</h1>
      <div class="tools">
        {whats.length > 1 && (
          <Choice
            label="Table"
            options={whats}
            chosen={chosen}
            onChoice={(key) => change({ [what]: key || undefined, by: undefined, ...nothingChosen })}
          />
        )}
        {ways.length > 1 && (
          <span class="op-ways">
            <span class="muted small">Group by</span>
            <Choice
              label="Group by"
              options={ways}
              chosen={way}
              onChoice={(key) => change({ by: key === ways[0]?.[0] ? undefined : key, place: undefined })}
            />
          </span>
        )}
      </div>
    </header>
  );
}

/** A table. With a key it is made anew for each question: else the answer to the one before would be taken for it. */
export function Asked(props: {
  path: string;
  query?: Query;
  children: (table: Columns) => ComponentChildren;
}) {
  const answer = useColumns(props.path, props.query);
  return <Shown answer={answer}>{props.children}</Shown>;
}

/** A table, and beside it what is chosen in it, or that it is not there. */
export function Split(props: {
  table: ComponentChildren;
  name: string | undefined;
  /** What there is none of; undefined where it is there. */
  missing?: string | undefined;
  children: ComponentChildren;
}) {
  const { name, missing } = props;
  return (
    <div class="op-split" data-open={name === undefined ? undefined : ""}>
      {props.table}
      {name !== undefined &&
        (missing ? (
          <aside class="panel op-panel">
            <Nothing>
              {missing} <Button onClick={close}>Close</Button>
            </Nothing>
          </aside>
        ) : (
          props.children
        ))}
    </div>
  );
}
