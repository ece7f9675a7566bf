/** The memory of one device over time, with what each part holds where the pointer or the cursor is. */

import { useMemo, useState } from "preact/hooks";
import { type Answer, Shown, useColumns, useSource } from "../parts/answer";
import { Chart, type Layer } from "../parts/chart";
import { rowAt } from "../parts/chart-scale";
import { change } from "../router";
import type { Columns } from "../source/source";
import { moment } from "../timeline/ticks";
import * as units from "../units";
import { countsOf, type Device, partsOf, sameParts, tail } from "./facts";

export function CurveView(props: {
  answer: Answer<Columns>;
  device: Device;
  by: string;
  counts: boolean;
  /** The chosen time; the peak is meant where there is none. */
  time: number | undefined;
  /** Whether a part of the run can be shown closer. */
  zooms: boolean;
}) {
  return (
    <div class="curve">
      <Shown answer={props.answer}>{(curve) => <Drawn {...props} curve={curve} />}</Shown>
    </div>
  );
}

function Drawn(props: {
  curve: Columns;
  device: Device;
  by: string;
  counts: boolean;
  time: number | undefined;
  zooms: boolean;
}) {
  const { curve, device, by, counts, time: chosen } = props;
  const [hovered, setHovered] = useState<number | null>(null);
  const source = useSource();
  const layers = useMemo(() => partsOf(curve, by), [curve, by]);
  const lines = useMemo(() => countsOf(curve), [curve]);
  const marks = useMemo(() => [{ time: device.peak_ns, label: "peak" }], [device]);
  const time = curve.numbers("time_ns");
  const span = Math.max((time[time.length - 1] ?? 0) - (time[0] ?? 0), 1);
  const cursor = chosen ?? device.peak_ns;
  const query = { device: device.key, by, time: chosen };
  const at = useColumns(source.has("memory/at", query) ? "memory/at" : null, query).value;
  // The two answers come one after the other: until both have, they may be of different parts.
  const exact = at && sameParts(at, curve) ? at : undefined;
  const pointed = hovered !== null && hovered < time.length ? hovered : null;
  // The curve is reduced to what a screen shows: at the cursor its values are asked for by themselves.
  const read = pointed === null && exact ? exact : curve;
  const row = pointed ?? (read === curve ? rowAt(time, cursor) : 0);
  const description = `${units.time(cursor)}: ${units.bytes(read.numbers("total")[row])} live`;
  const when = pointed !== null ? "At" : chosen === undefined ? "At the peak," : "At the cursor,";
  return (
    <>
      <Chart
        label={`Memory of ${device.device} over time, by ${by}`}
        time={time}
        layers={layers}
        lines={counts ? lines : NONE}
        height="max(19rem, 24vh)"
        cursor={cursor}
        marks={marks}
        description={description}
        onHover={setHovered}
        onCursor={(time) => change({ time: time === device.peak_ns ? undefined : String(time) })}
        {...(props.zooms && {
          onRange: (start: number, end: number) =>
            change({ start: String(Math.floor(start)), end: String(Math.ceil(end)) }),
        })}
      />
      <table class="readings">
        <caption>
          {when} {moment(pointed === null ? cursor : (time[pointed] ?? 0), span / 500)}
        </caption>
        <tbody>
          {[...layers.keys()].reverse().map((index) => (
            <Reading key={index} layer={layers[index]} value={read.numbers(`part${index}`)[row]} />
          ))}
          <tr class="sum">
            <th>live</th>
            <td>{units.bytes(read.numbers("total")[row])}</td>
          </tr>
          {lines.map((line) => (
            <Reading key={line.label} layer={line} value={read.numbers(line.label)[row]} line={counts} />
          ))}
        </tbody>
      </table>
    </>
  );
}

const NONE: readonly Layer[] = [];

function Reading(props: { layer: Layer | undefined; value: number | undefined; line?: boolean }) {
  const { layer, value, line } = props;
  if (!layer) return null;
  const painted = `var(--${layer.color})`;
  return (
    <tr class={value === 0 ? "none" : ""}>
      <th title={layer.label.slice(0, 2000)}>
        {line !== false && (
          <span
            class={line ? "swatch dashed" : "swatch"}
            style={line ? { borderColor: painted } : { background: painted }}
          />
        )}
        <span class="name">{tail(layer.label, 20)}</span>
      </th>
      <td>{units.bytes(value)}</td>
    </tr>
  );
}
