/** What the numbers about a trace mean: checks in words, and all of them in one line. */

import * as units from "../units";

export interface Health {
  stopped: boolean;
  losses: { kinds: number; count: number };
  spans: number;
  unfinished: number;
  overlapping: number;
  launches: {
    work: number;
    tied: number;
    calls: number;
    without_work: number;
    early: number;
    earliest_ns: number;
  } | null;
  clock: Readonly<Record<string, number>> | null;
  processes: { count: number; unknown_clocks: number; largest_error_ns: number };
  overhead: { spans: number; time_ns: number; duration_ns: number };
  covered_percent: number | null;
  recorded: { what: string; rows: number; asked: boolean | null }[];
}

/** `warn`: numbers of the trace may mislead. `note`: worth knowing. */
export type State = "good" | "note" | "warn";

export interface Check {
  state: State;
  title: string;
  /** What was found. */
  told: string;
  /** What it means, or what helps. */
  meaning: string;
}

export interface Judged {
  state: State;
  line: string;
  checks: Check[];
}

/** Launches that begin before their call by less than this are the rounding of times. */
const ROUNDING_NS = 1_000;

export function judged(health: Health): Judged {
  const checks = [
    recording(health),
    losses(health),
    health.spans > 0 ? ends(health) : undefined,
    launches(health),
    early(health),
    clock(health),
    deviceClock(health),
    processes(health),
    overhead(health),
    coverage(health),
    overlaps(health),
  ].filter((check) => check !== undefined);
  const warnings = checks.filter((check) => check.state === "warn");
  const [first] = warnings;
  const state = first ? "warn" : "good";
  const line = first
    ? warnings.length > 1
      ? `${first.told} and ${warnings.length - 1} more`
      : first.told
    : health.spans
      ? "Nothing is missing"
      : "The trace is empty";
  return { state, line, checks };
}

function recording(health: Health): Check {
  return health.stopped
    ? {
        state: "good",
        title: "Recording",
        told: "Stopped as it should be",
        meaning: "The trace holds all there was up to its end.",
      }
    : {
        state: "warn",
        title: "Recording",
        told: "Never stopped",
        meaning: "The program ended, or still runs, without stop(). What it had recorded by then is here.",
      };
}

function losses(health: Health): Check {
  const { kinds, count } = health.losses;
  return kinds === 0
    ? {
        state: "good",
        title: "Losses",
        told: "Nothing was lost",
        meaning: "No record was dropped or damaged.",
      }
    : {
        state: "warn",
        title: "Losses",
        told: `${units.count(count)} records of ${kinds === 1 ? "one kind" : `${kinds} kinds`} lost`,
        meaning: "Sums over what was lost are too small. The table below says what, where and why.",
      };
}

function ends(health: Health): Check {
  const { unfinished, spans } = health;
  return unfinished === 0
    ? {
        state: "good",
        title: "Ends of spans",
        told: `All ${units.count(spans)} spans have an end`,
        meaning: "",
      }
    : {
        state: "note",
        title: "Ends of spans",
        told: `${units.count(unfinished)} of ${units.count(spans)} spans have no end`,
        meaning: "They were still running when the recording ended, and are cut there.",
      };
}

function launches(health: Health): Check | undefined {
  const found = health.launches;
  if (!found) return undefined;
  const lacking = found.work - found.tied;
  const unused = found.without_work
    ? ` ${units.count(found.without_work)} of ${units.count(found.calls)} calls that start work show none: it ran outside the recorded time, or needed none.`
    : "";
  if (lacking === 0)
    return {
      state: "good",
      title: "Launches",
      told: `All ${units.count(found.work)} kernels and copies have the call that started them`,
      meaning: unused.trim(),
    };
  return {
    state: lacking > found.work * 0.01 ? "warn" : "note",
    title: "Launches",
    told: `${units.count(lacking)} of ${units.count(found.work)} kernels and copies have no call`,
    meaning: `Their time counts for no operator, module or line. The call came before the recording, or its record was lost.${unused}`,
  };
}

function early(health: Health): Check | undefined {
  const found = health.launches;
  if (!found || found.tied === 0) return undefined;
  if (found.early === 0 || found.earliest_ns <= ROUNDING_NS)
    return {
      state: "good",
      title: "Host and device",
      told: "No kernel begins before its call",
      meaning: found.early ? `By more than ${units.time(ROUNDING_NS)}, the rounding of times.` : "",
    };
  return {
    state: found.early > found.tied * 0.01 ? "warn" : "note",
    title: "Host and device",
    told: `${units.count(found.early)} kernels or copies begin before their call`,
    meaning: `By up to ${units.time(found.earliest_ns)}: the clocks of host and device disagree by at least that.`,
  };
}

function clock(health: Health): Check | undefined {
  const readings = health.clock?.["readings"];
  if (readings === undefined) return undefined;
  const error = health.clock?.["largest_error_ns"] ?? 0;
  return {
    state: error > 100_000 ? "warn" : "good",
    title: "Clock",
    told: `${units.count(readings)} checks, ${error === 0 ? "none off" : `${units.time(error)} off at most`}`,
    meaning: "The recorder's fast clock against that of the system, while it recorded.",
  };
}

function deviceClock(health: Health): Check | undefined {
  const calls = health.clock?.["device_calls"];
  if (!calls) return undefined;
  const astride = health.clock?.["device_calls_astride"] ?? 0;
  const shift = health.clock?.["device_shift_ns"] ?? 0;
  const moved = shift ? ` The device's times were moved by ${units.time(shift)} to fit.` : "";
  return {
    state: astride > calls * 0.01 ? "warn" : "good",
    title: "Clock of the device",
    told:
      astride === 0
        ? `All ${units.count(calls)} calls of the runtime fit their operators`
        : `${units.count(astride)} of ${units.count(calls)} calls of the runtime do not fit their operators`,
    meaning: `A call and its operator were timed by two clocks.${moved}`,
  };
}

function processes(health: Health): Check | undefined {
  const { count, unknown_clocks, largest_error_ns } = health.processes;
  if (count < 2) return undefined;
  return unknown_clocks > 0
    ? {
        state: "warn",
        title: "Clocks of processes",
        told: `${units.count(unknown_clocks)} of ${units.count(count)} processes lie where nobody knows`,
        meaning:
          "Nothing in the traces tells how their clocks stood to each other; they were begun together.",
      }
    : {
        state: largest_error_ns > 1_000_000 ? "note" : "good",
        title: "Clocks of processes",
        told: `${units.count(count)} processes, ${largest_error_ns ? `${units.time(largest_error_ns)} off at most` : "on one clock"}`,
        meaning: "What is closer together than this on two processes may have happened in either order.",
      };
}

function overhead(health: Health): Check | undefined {
  const { spans, time_ns, duration_ns } = health.overhead;
  if (spans === 0) return undefined;
  const share = duration_ns > 0 ? (100 * time_ns) / duration_ns : 0;
  return {
    state: share > 5 ? "warn" : share > 1 ? "note" : "good",
    title: "Overhead",
    told: `The profiler worked for ${units.time(time_ns)}, ${units.percent(share)} of the trace`,
    meaning: `As far as it says so, in ${units.count(spans)} spans of the kind overhead. The program waited then.`,
  };
}

function coverage(health: Health): Check | undefined {
  const share = health.covered_percent;
  if (share === null) return undefined;
  return {
    state: share < 80 ? "note" : "good",
    title: "Counted operations",
    told: `Known for ${units.percent(share)} of the operators' time`,
    meaning:
      share < 99.95
        ? "FLOPs and bytes leave the rest out; the table flops_coverage names its operators."
        : "FLOPs and bytes hold all operators.",
  };
}

function overlaps(health: Health): Check | undefined {
  const { overlapping, spans } = health;
  if (overlapping === 0) return undefined;
  return {
    state: overlapping > spans * 0.05 ? "note" : "good",
    title: "Nesting",
    told: `${units.count(overlapping)} spans partly overlap others of their thread`,
    meaning: "They stand beside the tree and have no self time, so that no moment counts twice.",
  };
}
