/** Draws the timeline on its canvases whenever something of it has changed. */

import { effect } from "@preact/signals";
import { colour, theme } from "../parts/theme";
import { time } from "../units";
import { arrowsOf } from "./details";
import { point } from "./input";
import { type Layout, laneOf, lanesWithin } from "./layout";
import {
  type Colours,
  clear,
  type Place,
  paintArrows,
  paintAxis,
  paintBrush,
  paintCursor,
  paintGrid,
  paintMarks,
  paintOutline,
  paintPin,
  paintRange,
  paintSign,
  paintWhole,
  pixelOf,
  type Sheet,
} from "./paint-frame";
import { LanePainter, textScale } from "./paint-lanes";
import { moment } from "./ticks";
import type { Timeline } from "./timeline";
import { Whole } from "./whole";

/** Tracks this far out of sight are asked for too, so that scrolling finds them. */
const NEAR_PX = 120;

export interface Canvases {
  lanes: HTMLCanvasElement;
  over: HTMLCanvasElement;
  axis: HTMLCanvasElement;
  whole: HTMLCanvasElement;
}

/** What the stage tells the page that holds it. */
export interface Told {
  /** Where the labels of the axis count from. */
  base: (base: number | null) => void;
}

export class Stage {
  private frame = 0;
  private readonly sheets: Record<keyof Canvases, Sheet>;
  private readonly painter: LanePainter;
  private readonly whole: Whole;
  private readonly wholePicture = document.createElement("canvas");
  private wholeDrawn = "";
  /** False where the boxes have to be drawn anew; a pointer that moves changes only what is over them. */
  private lanesDrawn = false;
  private readonly endings: (() => void)[] = [];
  private colours: Colours = colour;
  private base: number | null = null;

  constructor(
    private readonly timeline: Timeline,
    private readonly canvases: Canvases,
    private readonly told: Told,
  ) {
    this.sheets = {
      lanes: sheetOf(canvases.lanes),
      over: sheetOf(canvases.over),
      axis: sheetOf(canvases.axis),
      whole: sheetOf(canvases.whole),
    };
    this.painter = new LanePainter(this.sheets.lanes.context, timeline.palette);
    this.whole = new Whole(timeline, () => this.draw());
    this.endings.push(
      effect(() => {
        theme.value;
        this.colours = remembered();
        this.timeline.palette.renew(this.colours);
        this.wholeDrawn = "";
        this.lanesDrawn = false;
        this.draw();
      }),
      effect(() => {
        const { view, scroll, layout, arrived, search } = timeline;
        for (const one of [view, scroll, layout, arrived, search.text]) one.value;
        this.lanesDrawn = false;
        this.draw();
      }),
      effect(() => {
        const { search, pointer, cursor, chosen, details, range, pinned, arrows } = timeline;
        for (const one of [search.found, pointer, cursor, chosen, details, range, pinned, arrows]) one.value;
        this.draw();
      }),
    );
    this.resize();
  }

  end(): void {
    cancelAnimationFrame(this.frame);
    for (const ending of this.endings) ending();
  }

  /** Take the sizes of the canvases from the page. */
  resize(): void {
    const ratio = devicePixelRatio || 1;
    const scale = textScale();
    for (const name of Object.keys(this.canvases) as (keyof Canvases)[]) {
      const canvas = this.canvases[name];
      const box = canvas.getBoundingClientRect();
      const width = Math.max(Math.round(box.width * ratio), 1);
      const height = Math.max(Math.round(box.height * ratio), 1);
      if (canvas.width !== width) canvas.width = width;
      if (canvas.height !== height) canvas.height = height;
      this.sheets[name] = { context: this.sheets[name].context, width, height, ratio, scale };
    }
    const { width, height } = this.sheets.lanes;
    this.painter.resize(width, ratio);
    this.timeline.width.value = width / ratio;
    this.timeline.height.value = height / ratio;
    this.wholeDrawn = "";
    this.lanesDrawn = false;
    this.paint(performance.now());
  }

  draw(): void {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      this.paint(now);
    });
  }

  private paint(now: number): void {
    const { timeline } = this;
    if (timeline.motion.moving) {
      const view = timeline.view.peek();
      const at = timeline.cursor.peek() ?? (view.start + view.end) / 2;
      timeline.show(timeline.motion.step(view, at, now));
      this.draw();
    }
    const layout = timeline.layout.peek();
    point(timeline);
    // Of a live trace that has grown, the picture so far stays until there is a new one.
    if (!this.lanesDrawn && !timeline.loader.empty) {
      this.lanesDrawn = true;
      this.paintLanes(layout);
    }
    this.paintOver(layout);
    this.paintAround();
    this.wish(layout);
  }

  private wish(layout: Layout): void {
    const scroll = this.timeline.scroll.peek();
    const height = this.timeline.height.peek();
    const inSight = lanesWithin(layout, scroll, scroll + height);
    const near = lanesWithin(layout, scroll - NEAR_PX, scroll + height + NEAR_PX);
    const ordered = [...inSight, ...near.filter((lane) => !inSight.includes(lane))].map((lane) => lane.track);
    this.timeline.loader.want({
      view: this.timeline.view.peek(),
      pixels: this.timeline.width.peek(),
      tracks: ordered.filter((track) => track.sort !== "counter").map((track) => track.id),
      counters: ordered
        .filter((track) => track.sort === "counter")
        .map(({ id, spans }) => ({ id, values: spans })),
    });
    if (inSight.length) this.whole.look();
  }

  private paintLanes(layout: Layout): void {
    const { timeline, colours } = this;
    const sheet = this.sheets.lanes;
    const scroll = timeline.scroll.peek();
    const scene = {
      view: timeline.view.peek(),
      scroll,
      find: timeline.search.text.peek().trim().toLowerCase(),
      faded: colours("faint"),
    };
    clear(sheet);
    paintGrid(sheet, scene.view, colours);
    for (const lane of lanesWithin(layout, scroll, scroll + timeline.height.peek())) {
      if (lane.track.sort === "counter") {
        const answers = timeline.loader.counter(lane.track.id);
        this.painter.curve(lane, answers, scene, colours("accent"));
      } else this.painter.boxes(lane, timeline.loader.boxes(lane.track.id), scene);
      this.line(sheet, lane.top + lane.height - scroll);
    }
    for (const heading of layout.headings) {
      const top = (heading.top - scroll) * sheet.ratio;
      sheet.context.fillStyle = colours("sunken");
      sheet.context.fillRect(0, top, sheet.width, 26 * sheet.ratio);
    }
  }

  private line(sheet: Sheet, y: number): void {
    sheet.context.fillStyle = this.colours("line");
    sheet.context.fillRect(0, Math.round(y * sheet.ratio) - sheet.ratio, sheet.width, sheet.ratio);
  }

  private paintOver(layout: Layout): void {
    const { timeline, colours } = this;
    const sheet = this.sheets.over;
    const view = timeline.view.peek();
    const scroll = timeline.scroll.peek();
    clear(sheet);
    const range = timeline.range.peek();
    if (range) paintRange(sheet, view, range, colours);
    const pinned = timeline.pinned.peek();
    if (pinned !== null) paintPin(sheet, pixelOf(view, sheet, pinned), colours);
    const cursor = timeline.cursor.peek();
    if (cursor !== null) paintCursor(sheet, pixelOf(view, sheet, cursor), colours);
    const where = (place: Place): number | null => {
      const lane = laneOf(layout, place.track);
      return lane ? lane.top + 3 + (place.row + 0.5) * lane.rowHeight - scroll : null;
    };
    paintArrows(sheet, view, timeline.arrows.peek(), where, false, colours);
    const hovered = timeline.hovered.peek();
    const hoveredLane = hovered && laneOf(layout, hovered.track);
    if (hoveredLane) paintOutline(sheet, view, hoveredLane, scroll, hovered, false, colours);
    const details = timeline.details.peek()?.value;
    if (details) paintArrows(sheet, view, arrowsOf(details), where, true, colours);
    const chosen = timeline.chosen.peek();
    const lane = chosen && laneOf(layout, chosen.track);
    if (lane) paintOutline(sheet, view, lane, scroll, chosen, true, colours);
  }

  private paintAround(): void {
    const { timeline, colours } = this;
    const view = timeline.view.peek();
    const axis = this.sheets.axis;
    const base = paintAxis(axis, view, colours);
    if (base !== this.base) {
      this.base = base;
      this.told.base(base);
    }
    const range = timeline.range.peek();
    if (range) {
      const middle = pixelOf(
        view,
        axis,
        (Math.max(range.start, view.start) + Math.min(range.end, view.end)) / 2,
      );
      if (range.end > view.start && range.start < view.end)
        paintSign(axis, time(range.end - range.start), middle, axis.ratio, colours);
    }
    const resolution = (view.end - view.start) / (axis.width / axis.ratio);
    const pinned = timeline.pinned.peek();
    if (pinned !== null && pinned >= view.start && pinned <= view.end)
      paintSign(axis, moment(pinned, resolution), pixelOf(view, axis, pinned), axis.ratio, colours);
    const cursor = timeline.cursor.peek();
    if (cursor !== null) {
      paintSign(axis, moment(cursor, resolution), pixelOf(view, axis, cursor), axis.ratio, colours);
    }
    if (!this.whole.version) return;
    const whole = this.sheets.whole;
    this.pictureOfWhole(whole);
    clear(whole);
    whole.context.drawImage(this.wholePicture, 0, 0);
    paintBrush(whole, view, timeline.whole, colours);
    const found = timeline.search.found.peek();
    if (found) paintMarks(whole, timeline.whole, found.numbers("start_ns"), colours("warn"), false);
    const chosen = timeline.chosen.peek();
    if (chosen) paintMarks(whole, timeline.whole, [chosen.start], colours("text"), true);
  }

  /** The overview is drawn once and kept. */
  private pictureOfWhole(sheet: Sheet): void {
    const key = `${sheet.width}x${sheet.height}:${this.whole.version}`;
    if (key === this.wholeDrawn) return;
    this.wholeDrawn = key;
    this.wholePicture.width = sheet.width;
    this.wholePicture.height = sheet.height;
    const context = this.wholePicture.getContext("2d");
    const { whole, palette } = this.timeline;
    if (context) paintWhole({ ...sheet, context }, this.whole.boxes, whole, palette);
  }
}

function sheetOf(canvas: HTMLCanvasElement): Sheet {
  const context = canvas.getContext("2d");
  if (!context) throw new Error("this browser cannot draw on a canvas");
  return { context, width: 1, height: 1, ratio: 1, scale: 1 };
}

/** The colours of the theme as it is now; reading them from the page each time would be slow. */
function remembered(): Colours {
  const known = new Map<string, string>();
  return (name) => {
    let value = known.get(name);
    if (value === undefined) {
      value = colour(name);
      known.set(name, value);
    }
    return value;
  };
}
