/** A choice of one of a few words, all of them in sight. */

export function Choice(props: {
  label: string;
  options: readonly (readonly [value: string, title: string, hint?: string])[];
  chosen: string;
  onChoice: (value: string) => void;
}) {
  return (
    <span class="choice" role="group" aria-label={props.label}>
      {props.options.map(([value, title, hint]) => (
        <button
          key={value}
          type="button"
          title={hint}
          aria-pressed={value === props.chosen}
          onClick={() => props.onChoice(value)}
        >
          {title}
        </button>
      ))}
    </span>
  );
}
