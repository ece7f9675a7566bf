/** A text that is cut in its middle where there is no room for all of it: its end often tells most. */

/** A text up to this length is cut at its end. */
const SHORT = 22;
const LONGEST_TAIL = 36;
const SHORTEST_TAIL = 8;

export function Middle(props: { children: string }) {
  const [head, tail, keeps] = parted(props.children);
  if (!tail) return <>{head}</>;
  return (
    <span class="middle" data-keeps={keeps}>
      <span>{head}</span>
      <span>
        <bdi>{tail}</bdi>
      </span>
    </span>
  );
}

/** The two parts of a text, and which of them is kept whole: a file with its line, else the last word. */
export function parted(text: string): [head: string, tail: string, keeps: "head" | "tail"] {
  const [place = ""] = /^[^\s/\\]+:\d+(?= )/.exec(text) ?? [];
  if (place && place.length <= LONGEST_TAIL) return [place, text.slice(place.length), "head"];
  if (text.length <= SHORT) return [text, "", "tail"];
  const [frame = ""] = /[^\s/\\]+(?::\d+|\(\d+\): .*)$/.exec(text) ?? [];
  const [word = ""] = /[^\s/\\:.#]+$/.exec(text) ?? [];
  const kept = [frame, word].find((one) => one.length >= SHORTEST_TAIL && one.length <= LONGEST_TAIL);
  const at =
    text.length - (kept && (kept === frame || kept.length < 0.7 * text.length) ? kept.length : SHORTEST_TAIL);
  return at > 0 ? [text.slice(0, at), text.slice(at), "tail"] : [text, "", "tail"];
}
