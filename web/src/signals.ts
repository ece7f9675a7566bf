/** Values that know who reads them: when one changes, components that read it are drawn anew and effects run anew. */

import { type Component, options, type VNode } from "preact";
import { useState } from "preact/hooks";

export interface Signal<T> {
  /** To read it here is to be told of the next value. */
  value: T;
  /** The value for who does not want to be told. */
  peek(): T;
  /** Be given the value now and whenever it changes; returns what ends that. */
  subscribe(told: (value: T) => void): () => void;
}

/** A component or an effect. */
interface Reader {
  /** What it read: the readers of each value. */
  readonly read: Set<Set<Reader>>;
  /** One of these values has changed. */
  changed(): void;
}

/** Who runs now, so that values know by whom they are read. */
let reading: Reader | undefined;

export function signal<T>(first: T): Signal<T> {
  let value = first;
  const readers = new Set<Reader>();
  const made: Signal<T> = {
    get value() {
      if (reading) {
        readers.add(reading);
        reading.read.add(readers);
      }
      return value;
    },
    set value(next) {
      if (next === value) return;
      value = next;
      // One that was told may have ended another.
      for (const reader of [...readers]) if (readers.has(reader)) reader.changed();
    },
    peek: () => value,
    subscribe: (told) =>
      effect(() => {
        const now = made.value;
        reading = undefined;
        told(now);
      }),
  };
  return made;
}

/** Run something now and whenever a value that it read has changed; returns what ends that. */
export function effect(run: () => void): () => void {
  const reader: Reader = {
    read: new Set(),
    changed() {
      forget(reader);
      const before = reading;
      reading = reader;
      try {
        run();
      } finally {
        reading = before;
      }
    },
  };
  reader.changed();
  return () => forget(reader);
}

/** A signal of a component's own. */
export function useSignal<T>(first: T): Signal<T> {
  return useState(() => signal(first))[0];
}

function forget(reader: Reader): void {
  for (const readers of reader.read) readers.delete(reader);
  reader.read.clear();
}

/** What Preact tells before it runs a component, under the names by which its own hooks know it, too. */
type Inner = VNode & { __c?: Component };
const hooks = options as { __r?: (vnode: Inner) => void } & Pick<typeof options, "diffed" | "unmount">;
const { __r: before, diffed: after, unmount } = hooks;
const components = new WeakMap<Component, Reader>();

hooks.__r = (vnode) => {
  before?.(vnode);
  const component = vnode.__c;
  if (!component) return;
  const reader = components.get(component) ?? { read: new Set(), changed: () => component.forceUpdate() };
  components.set(component, reader);
  forget(reader);
  reading = reader;
};

hooks.diffed = (vnode) => {
  reading = undefined;
  after?.(vnode);
};

hooks.unmount = (vnode: Inner) => {
  const reader = vnode.__c && components.get(vnode.__c);
  if (reader) forget(reader);
  unmount?.(vnode);
};
