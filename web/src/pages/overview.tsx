/** What ran where, how long the steps took, and what took most of the time: the first look at a trace. */

import { type Health, SIGNS, sentence } from "../health/health";
import { type Incident, moment, type Overview } from "../overview/facts";
import { FindingsCard } from "../overview/findings";
import { MemoryCard, RunCard, UtilizationCard } from "../overview/side-cards";
import { StepCard } from "../overview/step-card";
import { RequestDifference } from "../overview/step-difference";
import { Tiles } from "../overview/tiles";
import { TopCard } from "../overview/top-card";
import { Nothing, Shown, useAdvice, useJson } from "../parts/answer";
import { Choice } from "../parts/choice";
import { LoadCard } from "../parts/load";
import { Words } from "../parts/words";
import { address, change, route } from "../router";
import "../overview/overview.css";

export function OverviewPage() {
  const overview = useJson<Overview>("overview");
  return <Shown answer={overview}>{(value) => <Whole overview={value} />}</Shown>;
}

function Whole(props: { overview: Overview }) {
  const { overview } = props;
  const empty = overview.without_times !== "";
  const health = useJson<Health>("health").value;
  return (
    <div class="rows">
      <header class="title ov-title">
        <h1 class="name" title={overview.program?.slice(0, 2000)}>
          {titled(overview)}
        </h1>
        <span class="about">
          {[moment(overview.start_realtime_ns), overview.ended].filter(Boolean).join(" · ")}
        </span>
        {health && (
          <a class={`verdict ov-health ${health.state}`} href={address("health")}>
            <span aria-hidden="true">{SIGNS[health.state]}</span>
            {sentence(health.line)}
          </a>
        )}
      </header>
      {overview.incident && <IncidentCard incident={overview.incident} />}
      {!empty && <FindingsCard />}
      <Tiles tiles={overview.tiles} />
      {overview.requests.length > 0 && <RequestsCard requests={overview.requests} />}
      <div class="ov-body">
        <div class="rows">
          {empty ? (
            <>
              <section class="card">
                <Nothing>{overview.without_times}</Nothing>
              </section>
              {overview.memory && <MemoryCard />}
            </>
          ) : (
            <Times overview={overview} />
          )}
        </div>
        <aside class="rows">
          <RunCard overview={overview} />
          {!empty && <UtilizationCard overview={overview} />}
          {!empty && overview.memory && <MemoryCard />}
          {!empty && <LoadCard />}
        </aside>
      </div>
    </div>
  );
}

/** What happened, of a trace that a job which was left on kept because of it. */
function IncidentCard(props: { incident: Incident }) {
  const { title, notes, end_ns } = props.incident;
  return (
    <section class="card ov-incident" aria-label="Incident">
      <header class="head-line">
        <h2>{title}</h2>
        <a class="button" href={address("timeline", { time: String(end_ns) })}>
          Last moment on the timeline
        </a>
      </header>
      {notes.length > 0 && (
        <ul class="small">
          {notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </section>
  );
}

/** How long requests took, and on what: a sentence for each name. */
function RequestsCard(props: { requests: readonly string[] }) {
  return (
    <section class="card" aria-label="Requests">
      <h2>Requests</h2>
      <ul class="ov-requests">
        {props.requests.map((line) => (
          <li key={line}>
            <Words text={line} />
          </li>
        ))}
      </ul>
      <RequestDifference />
    </section>
  );
}

/** A device that is busy for less of the time than this is not what the run waits for. */
const LEAST_BUSY_PERCENT = 1;

/** The steps, and what took the time. */
function Times(props: { overview: Overview }) {
  const { overview } = props;
  const onDevice = overview.device_work > 0;
  // Where the device hardly worked, what took the time is on the host.
  const usual = overview.utilization.some((one) => !one.on_host && one.percent >= LEAST_BUSY_PERCENT)
    ? "device"
    : "host";
  const wanted = route.value.query["time"];
  const time = !onDevice ? "host" : wanted === "host" || wanted === "device" ? wanted : usual;
  const advice = useAdvice();
  const missing = [
    overview.modules === 0 && `Modules were not recorded${advice["modules"] ?? ""}.`,
    overview.stacks === 0 && `Source lines were not recorded${advice["stacks"] ?? ""}.`,
  ].filter((sentence) => sentence !== false);
  return (
    <>
      <StepCard overview={overview} />
      <header class="head-line">
        <h2>Where the time went</h2>
        {time === "host" && (
          <span class="muted small">{overview.steps ? "share of step time" : "share of recorded time"}</span>
        )}
        {onDevice && (
          <span class="tools">
            <Choice
              label="Time"
              options={[
                ["device", "Device time"],
                ["host", "Host time"],
              ]}
              chosen={time}
              onChoice={(one) => change({ time: one === usual ? undefined : one })}
            />
          </span>
        )}
      </header>
      <div class="ov-tops">
        {overview.stacks > 0 && (
          <TopCard top="lines" time={time} nothing="No source line launched any of it." />
        )}
        {time === "device" && <TopCard top="kernels" time={time} nothing="No kernel ran." />}
        <TopCard
          top="ops"
          time={time}
          nothing={time === "device" ? "No operator launched device work." : "No operator ran."}
        />
        {overview.modules > 0 && (
          <TopCard top="modules" time={time} nothing="No time was spent in modules." />
        )}
      </div>
      {missing.length > 0 && (
        <p class="muted small">
          {missing.join(" ")} <a href={address("health")}>What was recorded</a>
        </p>
      )}
    </>
  );
}

/** What ran or, where nobody says it, on what. */
function titled(overview: Overview): string {
  // Of the program's path its name.
  const ran = overview.program?.replace(/^python (-m )?([^\s'"]*\/)?/, "");
  const devices = overview.facts.find((fact) => fact.label === "Devices");
  return (ran || (devices ? `On ${devices.value}` : "Overview")).slice(0, 2000);
}
