/** The tables that a query can use, with their columns and what these mean. */

import { useState } from "preact/hooks";
import { Button } from "../parts/button";

export interface About {
  /** Why no query can run, or null. */
  problem: string | null;
  tables: readonly TableFacts[];
  examples: readonly { title: string; query: string }[];
  time_s: number;
  memory_bytes: number;
  most_rows: number;
  most_csv_rows: number;
}

interface TableFacts {
  name: string;
  /** What one row is. */
  row: string;
  columns: readonly { name: string; type: string; unit: string; meaning: string }[];
}

export function TableList(props: {
  tables: readonly TableFacts[];
  /** A name was chosen, to be put into the query. */
  onName: (name: string) => void;
  /** A table was chosen, to be looked at. */
  onTable: (name: string) => void;
}) {
  const [open, setOpen] = useState("");
  return (
    <aside class="sql-tables" aria-label="Tables">
      <h2>Tables</h2>
      <ul>
        {props.tables.map((table) => (
          <li key={table.name}>
            <div class="sql-table">
              <Button
                class="plain"
                aria-expanded={open === table.name}
                title={table.row}
                onClick={() => setOpen(open === table.name ? "" : table.name)}
              >
                <span aria-hidden="true">{open === table.name ? "▾" : "▸"}</span>
                <code>{table.name}</code>
              </Button>
              <Button
                class="plain look"
                title={`Show the first rows of ${table.name}`}
                onClick={() => props.onTable(table.name)}
              >
                look
              </Button>
            </div>
            {open === table.name && (
              <>
                <p class="muted">{table.row}</p>
                <ul>
                  {table.columns.map((column) => (
                    <li key={column.name}>
                      <Button
                        class="plain column"
                        title={`${column.meaning}${column.unit ? ` (${column.unit})` : ""}`}
                        onClick={() => props.onName(column.name)}
                      >
                        <code>{column.name}</code>
                        <span class="faint">{column.unit || column.type}</span>
                      </Button>
                    </li>
                  ))}
                </ul>
              </>
            )}
          </li>
        ))}
      </ul>
    </aside>
  );
}
