/** Draws the timeline on its canvases whenever something of it has changed. */

import { effect } from "@preact/signals";
import { color, theme } from "../parts/theme";
import { time } from "../units";
import { arrowsOf } from "./details";
import { point } from "./input";
import { HEADING_PX, type Lane, type Layout, laneOf, lanesWithin, rowTop } from "./layout";
import {
  type Place,
  paintArrows,
  paintAxis,
  paintBrush,
  paintGrid,
  paintMarks,
  paintMeasure,
  paintOutline,
  paintPin,
  paintRange,
  paintSign,
  paintWhole,
} from "./paint-frame";
import { LanePainter } from "./paint-lanes";
import { type Colors, clear, fill, fit, pixelOf, resize, type Sheet, sheetOf, upright } from "./sheet";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import { Whole } from "./whole";

/** Tracks this far out of sight are loaded, too, so that scrolling finds them. */
const NEAR_PX = 120;

export type Canvases = Record<"lanes" | "over" | "axis" | "whole", HTMLCanvasElement>;

export class Stage {
  #frame = 0;
  readonly #lanes: Sheet;
  readonly #over: Sheet;
  readonly #axis: Sheet;
  readonly #brush: Sheet;
  readonly #sheets: readonly Sheet[];
  readonly #painter: LanePainter;
  readonly #whole: Whole;
  /** The overview is drawn once and kept; false where it has to be drawn anew. */
  readonly #picture: Sheet;
  #wholeDrawn = false;
  /** False where the boxes have to be drawn anew; a pointer that moves changes only what is over them. */
  #lanesDrawn = false;
  readonly #endings: readonly (() => void)[];
  readonly #timeline: Timeline;

  /** `onBase` is called with where the labels of the axis count from. */
  constructor(
    timeline: Timeline,
    canvases: Canvases,
    readonly onBase: (base: number | null) => void,
  ) {
    this.#timeline = timeline;
    this.#lanes = sheetOf(canvases.lanes, color);
    this.#over = sheetOf(canvases.over, color);
    this.#axis = sheetOf(canvases.axis, color);
    this.#brush = sheetOf(canvases.whole, color);
    this.#picture = sheetOf(document.createElement("canvas"), color);
    this.#sheets = [this.#lanes, this.#over, this.#axis, this.#brush];
    this.#painter = new LanePainter(this.#lanes, timeline.palette);
    this.#whole = new Whole(timeline, () => {
      this.#wholeDrawn = false;
      this.draw();
    });
    const { view, scroll, layout, arrived, search, pointer, cursor, chosen, details } = timeline;
    this.#endings = [
      effect(() => {
        theme.value;
        const colors = remembered();
        for (const sheet of this.#sheets) sheet.colors = colors;
        timeline.palette.renew(colors);
        this.#anew();
      }),
      effect(() => {
        for (const one of [view, scroll, layout, arrived, search.text]) one.value;
        this.#lanesDrawn = false;
        this.draw();
      }),
      effect(() => {
        const { range, pinned, arrows, anchor } = timeline;
        for (const one of [search.found, pointer, cursor, chosen, details, range, pinned, arrows, anchor])
          one.value;
        this.draw();
      }),
    ];
    this.resize();
  }

  end(): void {
    cancelAnimationFrame(this.#frame);
    for (const ending of this.#endings) ending();
  }

  /** Take the sizes of the canvases from the page. */
  resize(): void {
    this.#sheets.forEach(fit);
    const { width, height, ratio } = this.#lanes;
    this.#painter.renew();
    this.#timeline.width.value = width / ratio;
    this.#timeline.height.value = height / ratio;
    this.#anew();
    this.#paint(performance.now());
  }

  draw(): void {
    this.#frame ||= requestAnimationFrame((now) => {
      this.#frame = 0;
      this.#paint(now);
    });
  }

  #anew(): void {
    this.#wholeDrawn = false;
    this.#lanesDrawn = false;
    this.draw();
  }

  #paint(now: number): void {
    const timeline = this.#timeline;
    if (timeline.motion.moving) {
      const view = timeline.view.peek();
      const at = timeline.cursor.peek() ?? (view.start + view.end) / 2;
      timeline.show(timeline.motion.step(view, at, now));
      this.draw();
    }
    if (!this.#lanesDrawn) timeline.makeRoom();
    const layout = timeline.layout.peek();
    point(timeline);
    // Of a live trace that has grown, the picture so far stays until there is a new one.
    if (!this.#lanesDrawn && !timeline.loader.empty) {
      this.#lanesDrawn = true;
      this.#paintLanes(layout);
    }
    this.#paintOver(layout);
    this.#paintAround();
    this.#wish(layout);
  }

  #wish(layout: Layout): void {
    const { scroll, height, loader, view, width } = this.#timeline;
    const top = scroll.peek();
    const bottom = top + height.peek();
    const inSight = lanesWithin(layout, top, bottom);
    const near = lanesWithin(layout, top - NEAR_PX, bottom + NEAR_PX);
    const tracks = [...new Set([...inSight, ...near])].map((lane) => lane.track);
    loader.want({
      view: view.peek(),
      pixels: width.peek(),
      tracks: tracks.filter((track) => track.sort !== "counter").map((track) => track.id),
      counters: tracks
        .filter((track) => track.sort === "counter")
        .map(({ id, spans }) => ({ id, values: spans })),
    });
    if (inSight.length) this.#whole.look();
  }

  #paintLanes(layout: Layout): void {
    const timeline = this.#timeline;
    const sheet = this.#lanes;
    const painter = this.#painter;
    const scroll = timeline.scroll.peek();
    const find = timeline.search.text.peek().trim().toLowerCase();
    const scene = { view: timeline.view.peek(), scroll, find };
    clear(sheet);
    paintGrid(sheet, scene.view);
    const inSight = lanesWithin(layout, scroll, scroll + timeline.height.peek());
    const paint = (lane: Lane) => {
      const { id, sort } = lane.track;
      if (sort === "counter") painter.curve(lane, timeline.loader.counter(id), scene);
      else painter.boxes(lane, timeline.loader.boxes(id), scene);
      painter.line(lane, scene);
    };
    const below = (lane: Lane) => !lane.pinned && !lane.folded;
    for (const lane of inSight) if (below(lane)) paint(lane);
    for (const { top } of layout.headings)
      fill(sheet, "sunken", 0, (top - scroll) * sheet.ratio, sheet.width, HEADING_PX * sheet.ratio);
    for (const lane of inSight) if (lane.folded) paint(lane);
    // Pinned tracks lie over the others.
    fill(sheet, "surface", 0, 0, sheet.width, layout.held * sheet.ratio);
    for (const lane of inSight) if (lane.pinned) paint(lane);
  }

  #paintOver(layout: Layout): void {
    const timeline = this.#timeline;
    const sheet = this.#over;
    const view = timeline.view.peek();
    const scroll = timeline.scroll.peek();
    clear(sheet);
    const range = timeline.range.peek();
    if (range) paintRange(sheet, view, range);
    const pinned = timeline.pinned.peek();
    if (pinned !== null) paintPin(sheet, pixelOf(view, sheet, pinned));
    const cursor = timeline.cursor.peek();
    if (cursor !== null) upright(sheet, "faint", pixelOf(view, sheet, cursor), 0.7);
    const where = (place: Place): number | null => {
      const lane = laneOf(layout, place.track);
      return lane ? rowTop(lane, place.row + 0.5) - scroll : null;
    };
    const outline = (place: Place | null, strong: boolean) => {
      const lane = place && laneOf(layout, place.track);
      if (lane) paintOutline(sheet, view, lane, scroll, place, strong);
    };
    paintArrows(sheet, view, timeline.arrows.peek(), where, false);
    outline(timeline.hovered.peek(), false);
    const details = timeline.details.peek()?.value;
    if (details) paintArrows(sheet, view, arrowsOf(details), where, true);
    const [anchor, chosen] = [timeline.anchor.peek(), timeline.chosen.peek()];
    outline(anchor, true);
    outline(chosen, true);
    if (anchor && chosen && anchor.span !== chosen.span) paintMeasure(sheet, view, anchor, chosen, where);
  }

  #paintAround(): void {
    const timeline = this.#timeline;
    const view = timeline.view.peek();
    const axis = this.#axis;
    this.onBase(paintAxis(axis, view));
    const sign = (text: string, at: number) => paintSign(axis, text, pixelOf(view, axis, at));
    const range = timeline.range.peek();
    if (range && range.end > view.start && range.start < view.end) {
      const middle = (Math.max(range.start, view.start) + Math.min(range.end, view.end)) / 2;
      sign(time(range.end - range.start), middle);
    }
    const [anchor, chosen] = [timeline.anchor.peek(), timeline.chosen.peek()];
    if (anchor && chosen && anchor.span !== chosen.span)
      sign(time(Math.abs(chosen.start - anchor.start)), (anchor.start + chosen.start) / 2);
    const resolution = (view.end - view.start) / (axis.width / axis.ratio);
    for (const at of [timeline.pinned.peek(), timeline.cursor.peek()])
      if (at !== null && at >= view.start && at <= view.end) sign(moment(at, resolution), at);
    if (!this.#whole.loaded) return;
    const { whole, palette } = timeline;
    const sheet = this.#brush;
    const picture = this.#picture;
    if (!this.#wholeDrawn) {
      this.#wholeDrawn = true;
      Object.assign(picture, { width: sheet.width, height: sheet.height, ratio: sheet.ratio });
      resize(picture.context.canvas, sheet);
      clear(picture);
      paintWhole(picture, this.#whole.boxes, whole, palette);
    }
    clear(sheet);
    sheet.context.drawImage(picture.context.canvas, 0, 0);
    paintBrush(sheet, view, whole);
    const found = timeline.search.found.peek();
    if (found) paintMarks(sheet, whole, found.numbers("start_ns"), "warn", false);
    if (chosen) paintMarks(sheet, whole, [chosen.start], "text", true);
  }
}

/** The colors of the theme as it is now; reading them from the page each time would be slow. */
function remembered(): Colors {
  const known = new Map<string, string>();
  return (name) => {
    const value = known.get(name) ?? color(name);
    known.set(name, value);
    return value;
  };
}
