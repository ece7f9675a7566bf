/** A choice of one of a few words: all of them in sight, or in a list that opens. */

import { Button } from "./button";

interface Choices {
  label: string;
  options: readonly (readonly [value: string, title: string, hint?: string])[];
  chosen: string;
  onChoice: (value: string) => void;
}

export function Choice(props: Choices) {
  return (
    <span class="choice" role="group" aria-label={props.label}>
      {props.options.map(([value, title, hint]) => (
        <Button
          key={value}
          title={hint}
          aria-pressed={value === props.chosen}
          onClick={() => props.onChoice(value)}
        >
          {title}
        </Button>
      ))}
    </span>
  );
}

export function Select(props: Choices) {
  return (
    <select
      aria-label={props.label}
      value={props.chosen}
      onChange={(event) => props.onChoice(event.currentTarget.value)}
    >
      {props.options.map(([value, title]) => (
        <option key={value} value={value}>
          {title}
        </option>
      ))}
    </select>
  );
}
