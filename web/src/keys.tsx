/** The keys that work on every page: `?` for help, `/` to search, Ctrl+K to go anywhere. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Help } from "./help";
import type { Page } from "./pages/pages";
import { useSource } from "./parts/answer";
import { Button } from "./parts/button";
import { dialog, isTyping } from "./parts/keyboard";
import { theme, turnTheme } from "./parts/theme";
import { go } from "./router";
import "./keys.css";

export function Keys(props: { pages: readonly Page[] }) {
  useEffect(() => {
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const close = () => {
    dialog.value = null;
  };
  if (dialog.value === "help") return <Help onClose={close} />;
  if (dialog.value === "go") return <GoTo pages={props.pages} onClose={close} />;
  return null;
}

function onKey(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key === "k") dialog.value = "go";
  else if (isTyping(event) || document.querySelector("dialog[open]")) return;
  else if (event.key === "?") dialog.value = "help";
  else if (event.key === "/") {
    const search = document.querySelector<HTMLInputElement>("main input[type=search]");
    // A page without a list, such as the overview, leads to those that have one.
    if (search) search.select();
    else dialog.value = "go";
  } else return;
  event.preventDefault();
}

/** Pages in which a text can be searched, and the key of their address for it. */
const SEARCHES: readonly (readonly [page: string, key: string, title: string])[] = [
  ["timeline", "find", "Find on the timeline"],
  ["operators", "operators.find", "Filter operators"],
  ["kernels", "kernels.find", "Filter kernels"],
  ["stacks", "find", "Find in stacks"],
  ["modules", "modules.find", "Filter modules"],
];

function GoTo(props: { pages: readonly Page[]; onClose: () => void }) {
  const { pages, onClose } = props;
  const source = useSource();
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => element.current?.showModal(), []);
  const wanted = text.trim().toLowerCase();
  const entries: { title: string; to: () => void }[] = [
    ...pages.map(({ name, title }) => ({ title, to: () => go(name) })),
    { title: theme.value === "dark" ? "Light theme" : "Dark theme", to: turnTheme },
    {
      title: "Keyboard and mouse",
      to: () => {
        dialog.value = "help";
      },
    },
  ].filter(({ title }) => title.toLowerCase().includes(wanted));
  if (wanted)
    for (const [page, key, title] of SEARCHES)
      if (pages.some(({ name }) => name === page) && (page !== "timeline" || source.has("tracks")))
        entries.push({ title: `${title}: ${text.trim()}`, to: () => go(page, { [key]: text.trim() }) });
  const place = Math.min(at, entries.length - 1);
  const open = (entry: (typeof entries)[number] | undefined) => {
    if (!entry) return;
    onClose();
    entry.to();
  };
  return (
    <dialog class="go-to" ref={element} onClose={onClose} aria-label="Go to">
      <input
        type="search"
        placeholder="Go to a page, or search for a name"
        aria-label="Go to"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
          if (step) setAt(Math.min(Math.max(place + step, 0), entries.length - 1));
          else if (event.key === "Enter") open(entries[place]);
          else return;
          event.preventDefault();
        }}
      />
      <ul>
        {entries.map((entry, index) => (
          <li key={entry.title}>
            <Button class="plain" aria-current={index === place} tabIndex={-1} onClick={() => open(entry)}>
              <span class="name">{entry.title}</span>
            </Button>
          </li>
        ))}
      </ul>
    </dialog>
  );
}
