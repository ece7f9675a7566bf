/** The filter that pages share: a step, or a range of time, instead of the whole trace. */

import { go, route } from "../router";
import * as units from "../units";
import { useJson, useSource } from "./answer";
import { Select } from "./choice";

/** Pages that show a part of the trace where one is chosen. */
const FILTERED = ["operators", "kernels", "modules", "stacks", "memory"];

/** When the chosen part starts; 0 for the whole trace. */
export function partStart(): number {
  return Number(route.value.query["part"]?.split("-")[0]) || 0;
}

export function PartChooser() {
  const source = useSource();
  const { page, query } = route.value;
  const here = source.served && FILTERED.includes(page);
  const steps = useJson<[number: number, start: number, end: number][]>(here ? "steps" : null).value ?? [];
  const { part } = query;
  if (!here || (!part && steps.length < 2)) return null;
  const options = steps.map(
    ([number, start, end]) => [`${start}-${end}`, `Step ${number}, ${units.time(end - start)}`] as const,
  );
  const [from = 0, to = 0] = (part ?? "").split("-").map(Number);
  const range = [part ?? "", `${units.time(to - from)} from ${units.time(from)}`] as const;
  const isRange = part && !options.some(([key]) => key === part);
  return (
    <Select
      label="Part of the trace"
      chosen={part ?? ""}
      options={[["", "Whole trace"], ...(isRange ? [range] : []), ...options]}
      // What else the address holds may not be in the other part.
      onChoice={(key) => go(page, { part: key || undefined })}
    />
  );
}
