/** A few words of which one is chosen. */

export function Choice<T extends string>(props: {
  label: string;
  options: readonly { key: T; title: string; hint?: string }[];
  value: T;
  onChoose: (key: T) => void;
}) {
  return (
    <div class="choice" role="group" aria-label={props.label}>
      {props.options.map((option) => (
        <button
          key={option.key}
          type="button"
          title={option.hint}
          aria-pressed={option.key === props.value}
          onClick={() => props.onChoose(option.key)}
        >
          {option.title}
        </button>
      ))}
    </div>
  );
}
