/** Operators, backward functions and ranges by name. */

import { Shown, useColumns } from "../parts/answer";
import { Table } from "../parts/table";

export function Operators() {
  const ops = useColumns("table/ops");
  return (
    <>
      <header class="title">
        <h1>Operators</h1>
      </header>
      <Shown answer={ops}>
        {(table) => (
          <Table
            table={table}
            id="ops"
            order="-self_ns"
            columns={[
              { name: "name", width: "minmax(14rem, 4fr)" },
              { name: "kind", width: "8rem" },
              { name: "count" },
              { name: "self_ns", bar: true },
              { name: "total_ns", bar: true },
              { name: "mean_ns" },
            ]}
          />
        )}
      </Shown>
    </>
  );
}
