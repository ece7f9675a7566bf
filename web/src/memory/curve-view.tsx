/** The memory of one device over time, with what each part holds where the pointer or the cursor is. */

import { useMemo, useState } from "preact/hooks";
import { type Answer, Shown } from "../parts/answer";
import { Chart, type Layer } from "../parts/chart";
import { rowAt } from "../parts/chart-scale";
import { change } from "../router";
import type { Columns } from "../source/source";
import * as units from "../units";
import { countsOf, type Device, partsOf, tail } from "./facts";

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
  const layers = useMemo(() => partsOf(curve, by), [curve, by]);
  const lines = useMemo(() => countsOf(curve), [curve]);
  const marks = useMemo(() => [{ time: device.peak_ns, label: "peak" }], [device]);
  const time = curve.numbers("time_ns");
  const cursor = chosen ?? device.peak_ns;
  const row = hovered !== null && hovered < time.length ? hovered : rowAt(time, cursor);
  const at = hovered === null ? cursor : (time[row] ?? 0);
  const total = curve.numbers("total")[row];
  return (
    <>
      <Chart
        label={`Memory of ${device.device} over time, by ${by}`}
        time={time}
        layers={layers}
        lines={counts ? lines : NONE}
        unit="bytes"
        height="19rem"
        cursor={cursor}
        marks={marks}
        told={`${units.time(cursor)}: ${units.bytes(curve.numbers("total")[rowAt(time, cursor)])}`}
        onHover={setHovered}
        onCursor={(time) => change({ time: time === device.peak_ns ? undefined : String(time) })}
        {...(props.zooms && {
          onRange: (start: number, end: number) =>
            change({ start: String(Math.floor(start)), end: String(Math.ceil(end)) }),
        })}
      />
      <table class="readings">
        <caption>
          {hovered === null ? (chosen === undefined ? "At the peak, " : "At the cursor, ") : "At "}
          {units.time(at)}
        </caption>
        <tbody>
          {[...layers].reverse().map((layer) => (
            <Reading key={layer.label} layer={layer} row={row} />
          ))}
          <tr class="sum">
            <th>live</th>
            <td>{units.bytes(total)}</td>
          </tr>
          {lines.map((line) => (
            <Reading key={line.label} layer={line} row={row} line={counts} />
          ))}
        </tbody>
      </table>
    </>
  );
}

const NONE: readonly Layer[] = [];

function Reading(props: { layer: Layer; row: number; line?: boolean }) {
  const { layer, row, line } = props;
  const value = layer.values[row];
  return (
    <tr class={value === 0 ? "none" : ""}>
      <th title={layer.label.slice(0, 2000)}>
        {line !== false && (
          <span
            class={line ? "swatch dashed" : "swatch"}
            style={
              line ? { borderColor: `var(--${layer.colour})` } : { background: `var(--${layer.colour})` }
            }
          />
        )}
        <span class="name">{tail(layer.label)}</span>
      </th>
      <td>{units.bytes(value)}</td>
    </tr>
  );
}
