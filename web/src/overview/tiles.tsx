/** The numbers at the head of the overview. */

import { sentence } from "../health/health";
import { useJson } from "../parts/answer";
import { shown } from "../units";
import type { Tile } from "./facts";

/** Keeps the place of a text that is on its way. */
const NOT_YET = "\u2007";

export function Tiles(props: { tiles: readonly Tile[] }) {
  return (
    <div class="ov-tiles">
      {props.tiles.map((tile) =>
        tile.ask ? <Late key={tile.title} tile={tile} /> : <Shown key={tile.title} {...tile} />,
      )}
    </div>
  );
}

function Late(props: { tile: Tile }) {
  const { value } = useJson<{ tile: Tile }>(props.tile.ask ?? null);
  return value ? (
    <Shown {...value.tile} />
  ) : (
    <Frame title={props.tile.title} value={NOT_YET} more={NOT_YET} />
  );
}

function Shown(tile: Tile) {
  const hint = sentence(tile.hint);
  return <Frame title={tile.title} value={shown(...tile.value)} more={sentence(tile.more)} hint={hint} />;
}

function Frame(props: { title: string; value: string; more: string; hint?: string }) {
  const [number, ...unit] = props.value.split(" ");
  return (
    <div class="card ov-tile" title={props.hint}>
      <h2>{props.title}</h2>
      <p class="number">
        {number} <small>{unit.join(" ")}</small>
      </p>
      <p class="muted tiny name">{props.more}</p>
    </div>
  );
}
