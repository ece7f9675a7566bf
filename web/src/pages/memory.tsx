/** Memory over time, who held it at the cursor and at the peak, and the blocks one by one. */

import { BlocksView } from "../memory/blocks-view";
import { CurveView } from "../memory/curve-view";
import { countsFit, type Device, deviceTitle, type Memory, mostBytes } from "../memory/facts";
import { LiveView } from "../memory/live-view";
import { StackView } from "../memory/stack-view";
import { Button } from "../parts/button";
import "../memory/memory.css";
import { Nothing, Shown, useAdvice, useColumns, useJson, useSource } from "../parts/answer";
import { Choice, Select } from "../parts/choice";
import { change, route } from "../router";
import { parsedView } from "../timeline/view";
import * as units from "../units";

const BY = [
  ["category", "Category"],
  ["module", "Module"],
] as const;

export function MemoryPage() {
  const answer = useJson<Memory>("memory");
  return (
    <Shown answer={answer}>
      {(memory) => {
        const wanted = route.value.query["device"] ?? memory.highest;
        const device = memory.devices.find((one) => one.key === wanted) ?? memory.devices[0];
        return device ? <OfDevice memory={memory} device={device} /> : <Without recorded={memory.recorded} />;
      }}
    </Shown>
  );
}

function Without(props: { recorded: boolean }) {
  const advice = useAdvice();
  return (
    <>
      <header class="title">
        <h1>Memory</h1>
      </header>
      <Nothing>
        {props.recorded
          ? "Memory was recorded, but nothing was allocated or freed."
          : `Memory was not recorded${advice["memory"] ?? ""}.`}
      </Nothing>
    </>
  );
}

function OfDevice(props: { memory: Memory; device: Device }) {
  const { memory, device } = props;
  const query = route.value.query;
  const advice = useAdvice();
  const source = useSource();
  const stack = query["stack"];
  const by = query["by"] === "module" && device.modules ? "module" : "category";
  const time = query["time"] && Number.isFinite(Number(query["time"])) ? Number(query["time"]) : undefined;
  const part = parsedView(query["start"], query["end"]);
  const whole = { device: device.key, by };
  const closer = source.has("memory/curve", { ...whole, start: 0, end: 1 });
  const curve = useColumns("memory/curve", closer ? { ...whole, ...part } : whole);
  const counted = device.allocated_bytes !== null || device.reserved_bytes !== null;
  const counts = counted && (query["allocator"] ?? (countsFit(device) ? "1" : "0")) === "1";
  return (
    <>
      <header class="title">
        <h1>Memory</h1>
        <span class="about">{headline(device)}</span>
        <span class="tools">
          {part && <Button onClick={() => change({ start: undefined, end: undefined })}>Whole run</Button>}
          {counted && (
            <label title="Bytes allocated and reserved according to the allocator">
              <input
                type="checkbox"
                checked={counts}
                onChange={(event) => change({ allocator: event.currentTarget.checked ? "1" : "0" })}
              />{" "}
              Allocator
            </label>
          )}
          {device.modules && (
            <Choice label="Group by" options={BY} chosen={by} onChoice={(value) => change({ by: value })} />
          )}
          {memory.devices.length > 1 && (
            <Select
              label="Device"
              chosen={device.key}
              options={memory.devices.map((one) => [
                one.key,
                `${deviceTitle(one, severalProcesses(memory))} · ${units.bytes(mostBytes(one))}`,
              ])}
              onChoice={(key) => change({ device: key, time: undefined, start: undefined, end: undefined })}
            />
          )}
        </span>
      </header>
      <div class="card">
        <CurveView answer={curve} device={device} by={by} counts={counts} time={time} zooms={closer} />
        <p class="muted">{hints(device, closer, advice)}</p>
      </div>
      <LiveView
        device={device}
        time={time}
        by={query["group"] ?? "all"}
        shown={part ? part.end - part.start : memory.duration_ns}
        chosen={stack}
      />
      <BlocksView device={device} order={query["blocks"] ?? "biggest"} chosen={stack} />
      {stack !== undefined && <StackView device={device} stack={Number(stack)} />}
    </>
  );
}

/** The most that the device held, and how much of it the trace can attribute. */
function headline(device: Device): string {
  const attributed = units.bytes(device.peak_bytes);
  const when = `${units.time(device.peak_ns)} from the start`;
  if (mostBytes(device) <= device.peak_bytes) return `${device.device} peak: ${attributed}, ${when}`;
  return `${device.device}: ${units.bytes(mostBytes(device))} allocated at the peak, ${when}; up to ${attributed} of it is attributed`;
}

/** How to use the curve, and what the recording did not see. */
function hints(device: Device, closer: boolean, advice: Readonly<Record<string, string>>): string {
  const words = [
    closer
      ? "Click to see what was live at that time; drag to zoom in."
      : "Click to read the curve at another time.",
  ];
  const before = (device.allocated_bytes ?? 0) - device.peak_bytes;
  if (before > 0.02 * device.peak_bytes)
    words.push(
      `The allocator's peak is ${units.bytes(device.allocated_bytes)}: the rest was allocated before the recording, so its owners are unknown.`,
    );
  if (device.unknown_percent > 20)
    words.push(
      `${units.percent(device.unknown_percent)} of the peak is in no category: the native engine records the tensors of modules and optimizers, which identifies most.`,
    );
  if (!device.stacks)
    words.push(`Stacks were not recorded${advice["stacks"] ?? ""}, so there are no source lines.`);
  if (!device.modules) words.push(`Modules were not recorded${advice["modules"] ?? ""}.`);
  return words.join(" ");
}

function severalProcesses(memory: Memory): boolean {
  return new Set(memory.devices.map((device) => device.process)).size > 1;
}
