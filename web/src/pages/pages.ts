/** The pages in the order of the navigation. */

import type { ComponentType } from "preact";
import { ComparePage } from "./compare";
import { HealthPage } from "./health";
import { Kernels } from "./kernels";
import { MemoryPage } from "./memory";
import { Modules } from "./modules";
import { Operators } from "./operators";
import { OverviewPage } from "./overview";
import { RanksPage } from "./ranks";
import { Stacks } from "./stacks";
import { TimelinePage } from "./timeline";

export interface Page {
  /** Its name in the address. */
  name: string;
  title: string;
  /** True where the page fills the window and scrolls by itself. */
  full: boolean;
  show: ComponentType;
  /** What the source must be able to answer for the page to make sense. */
  needs: string;
  /** True where a server must have two traces open. */
  ofTwo?: boolean;
}

export const PAGES: readonly Page[] = [
  { name: "overview", title: "Overview", full: false, show: OverviewPage, needs: "overview" },
  { name: "timeline", title: "Timeline", full: true, show: TimelinePage, needs: "tracks" },
  { name: "operators", title: "Operators", full: true, show: Operators, needs: "operators" },
  { name: "kernels", title: "Kernels", full: true, show: Kernels, needs: "table/kernels" },
  { name: "modules", title: "Modules", full: true, show: Modules, needs: "table/modules" },
  { name: "stacks", title: "Stacks", full: true, show: Stacks, needs: "flame_choices" },
  { name: "memory", title: "Memory", full: false, show: MemoryPage, needs: "memory" },
  { name: "ranks", title: "Ranks", full: false, show: RanksPage, needs: "ranks" },
  { name: "compare", title: "Compare", full: false, show: ComparePage, needs: "compare", ofTwo: true },
  { name: "health", title: "Trace health", full: false, show: HealthPage, needs: "health" },
];
