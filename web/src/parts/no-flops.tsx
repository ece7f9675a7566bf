/** Why a table has no columns of FLOPs, and how to record what they are counted from. */

import type { Columns } from "../source/source";
import { useJson } from "./answer";
import { says } from "./table-columns";

export function NoFlops(props: { table: Columns }) {
  const { value } = useJson<{ why: string }>(says(props.table, "flops") ? null : "overview/work");
  return value?.why ? <p class="muted tiny no-flops">{value.why}.</p> : null;
}
