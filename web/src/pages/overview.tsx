/** What ran where, how long the steps took, and what took most of the time: the first look at a trace. */

import { type Health, SIGNS, sentence } from "../health/health";
import { moment, type Overview, type Peak } from "../overview/facts";
import { MemoryCard, RunCard, UtilisationCard } from "../overview/side-cards";
import { StepCard } from "../overview/step-card";
import { Tiles } from "../overview/tiles";
import { TopCard, type TopKind } from "../overview/top-card";
import { Nothing, Shown, useColumns, useJson } from "../parts/answer";
import { LoadCard } from "../parts/load";
import { address, change, route } from "../router";
import "../overview/overview.css";

const NONE: never[] = [];

const TOPS: Readonly<Record<TopKind["table"], TopKind>> = {
  kernels: {
    table: "kernels",
    title: "Kernels",
    page: "kernels",
    noun: "kernels",
    leads: (row) => address("kernels", { name: row.name }),
  },
  ops: {
    table: "ops",
    title: "Operators",
    page: "operators",
    noun: "operators",
    leads: (row) => address("operators", { name: row.name, kind: row.kind ?? undefined }),
  },
  modules: {
    table: "modules",
    title: "Modules",
    page: "modules",
    noun: "modules",
    leads: (row) => address("modules", { module: String(row.key) }),
  },
  lines: {
    table: "lines",
    title: "Source lines",
    page: "stacks",
    noun: "lines",
    leads: (row) => address("stacks", { find: `${row.name}(${row.key})` }),
  },
};

export function OverviewPage() {
  const overview = useJson<Overview>("overview");
  return <Shown answer={overview}>{(value) => <Whole overview={value} />}</Shown>;
}

function Whole(props: { overview: Overview }) {
  const { overview } = props;
  const empty = overview.spans === 0;
  const peaks = useJson<{ peaks: Peak[] }>(overview.memory ? "overview/memory" : null);
  const breakdown = useColumns("table/breakdown");
  const health = useJson<Health>("health");
  const onDevice = overview.device_work > 0;
  const time = onDevice && route.value.query["time"] !== "host" ? "device" : "host";
  return (
    <div class="ov">
      <header class="title ov-title">
        <h1 class="name" title={overview.program?.slice(0, 2000)}>
          {titled(overview)}
        </h1>
        <span class="told">
          {[moment(overview.start_realtime_ns), overview.ended].filter(Boolean).join(" · ")}
        </span>
        <HealthLine health={health.value} />
      </header>
      <Tiles tiles={overview.tiles} />
      <div class="ov-body">
        <div class="ov-main">
          {empty && (
            <section class="card">
              <Nothing>
                The trace holds no spans: nothing ran while it recorded. Record while the program runs, with{" "}
                <code>activities=[ProfilerActivity.CPU]</code> and that of your device.
              </Nothing>
            </section>
          )}
          {!empty && (
            <StepCard
              answer={breakdown}
              leftOut={overview.steps?.left_out ?? NONE}
              expected={overview.steps?.count ?? 1}
            />
          )}
          <header class="ov-head ov-section" hidden={empty}>
            <h2>What took the time</h2>
            {onDevice && (
              <span class="choice">
                {(["device", "host"] as const).map((one) => (
                  <button
                    type="button"
                    key={one}
                    aria-pressed={time === one}
                    onClick={() => change({ time: one === "host" ? "host" : undefined })}
                  >
                    {one === "host" ? "Host time" : "Device time"}
                  </button>
                ))}
              </span>
            )}
          </header>
          <div class="ov-tops" hidden={empty}>
            {onDevice && time === "device" && (
              <TopCard kind={TOPS.kernels} time={time} nothing="No kernel ran." />
            )}
            <TopCard
              kind={TOPS.ops}
              time={time}
              nothing={time === "device" ? "No operator launched work on a device." : "No operator ran."}
            />
            {overview.modules > 0 && (
              <TopCard kind={TOPS.modules} time={time} nothing="No time was spent in modules." />
            )}
            {overview.stacks > 0 && (
              <TopCard kind={TOPS.lines} time={time} nothing="No line of the program started any of it." />
            )}
          </div>
          {(overview.modules === 0 || overview.stacks === 0) && overview.spans > 0 && (
            <p class="muted ov-note">
              {missing(overview)} <a href={address("health")}>What was recorded</a>
            </p>
          )}
        </div>
        <aside class="ov-side">
          <RunCard overview={overview} />
          {!empty && <UtilisationCard overview={overview} />}
          {overview.memory && <MemoryCard peaks={peaks} />}
          {!empty && <LoadCard />}
        </aside>
      </div>
    </div>
  );
}

/** What ran or, where nobody says it, on what. */
function titled(overview: Overview): string {
  const ran = overview.program?.replace(/^python (-m )?/, "");
  const devices = overview.facts.find((fact) => fact.label === "Devices");
  return (ran || (devices ? `On ${devices.value}` : "Overview")).slice(0, 2000);
}

function missing(overview: Overview): string {
  if (overview.modules === 0 && overview.stacks === 0)
    return "Modules and source lines are missing here: record with_modules=True and with_stack=True to have them.";
  return overview.modules === 0
    ? "Modules are missing here: record with_modules=True to have them."
    : "Source lines are missing here: record with_stack=True to have them.";
}

function HealthLine(props: { health: Health | undefined }) {
  const { health } = props;
  if (!health) return <span class="ov-health" />;
  return (
    <a class={`ov-health ${health.state}`} href={address("health")}>
      <span aria-hidden="true">{SIGNS[health.state]}</span>
      {sentence(health.line)}
    </a>
  );
}
