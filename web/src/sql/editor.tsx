/** A field for a query, which colors its words and proposes what the one being typed may become. */

import type { RefObject } from "preact";
import { useMemo, useRef, useState } from "preact/hooks";
import { Button } from "../parts/button";
import { completions, pieces, type Table, wordBefore } from "./words";

export function Editor(props: {
  field: RefObject<HTMLTextAreaElement | null>;
  value: string;
  tables: readonly Table[];
  onInput: (value: string) => void;
  onRun: () => void;
}) {
  const { field, value, tables, onInput } = props;
  const shade = useRef<HTMLPreElement>(null);
  const [offered, setOffered] = useState<readonly string[]>([]);
  const [at, setAt] = useState(0);
  const names = useMemo(
    () => new Set(tables.flatMap(({ name, columns }) => [name, ...columns.map((column) => column.name)])),
    [tables],
  );
  const offer = (words: readonly string[]) => {
    setOffered(words);
    setAt(0);
  };
  const accept = (word: string) => {
    const box = field.current;
    if (!box) return;
    const place = box.selectionStart;
    // Here and now, and not when the page is drawn again: what is typed until then belongs behind the word.
    box.setRangeText(word, place - wordBefore(box.value, place).length, place, "end");
    onInput(box.value);
    offer([]);
    box.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      offer([]);
      props.onRun();
    } else if (!offered.length) return;
    else if (step) setAt((at + step + offered.length) % offered.length);
    else if (event.key === "Tab" || event.key === "Enter") accept(offered[at] ?? "");
    else if (event.key === "Escape") offer([]);
    else return;
    event.preventDefault();
  };
  return (
    <div class="sql-editor">
      <pre class="mono" ref={shade} aria-hidden="true">
        {pieces(value, names).map(({ text, kind }, index) => (
          <span key={index} class={`sql-${kind}`}>
            {text}
          </span>
        ))}
        {"\n"}
      </pre>
      <textarea
        ref={field}
        class="mono"
        aria-label="Query"
        aria-autocomplete="list"
        rows={7}
        spellcheck={false}
        autocomplete="off"
        value={value}
        onInput={(event) => {
          const { value, selectionStart } = event.currentTarget;
          onInput(value);
          offer(completions(value, selectionStart, tables));
        }}
        onKeyDown={onKeyDown}
        onBlur={() => offer([])}
        onScroll={(event) =>
          shade.current?.scrollTo(event.currentTarget.scrollLeft, event.currentTarget.scrollTop)
        }
      />
      {offered.length > 0 && (
        <div class="sql-offered mono" role="listbox" aria-label="Completions" tabIndex={-1}>
          {offered.map((word, index) => (
            <Button
              key={word}
              class="plain"
              role="option"
              aria-selected={index === at}
              tabIndex={-1}
              // On press, before the field loses the focus.
              onMouseDown={(event) => {
                event.preventDefault();
                accept(word);
              }}
            >
              {word}
            </Button>
          ))}
        </div>
      )}
    </div>
  );
}
