/** A choice of one of many, which are seen when it is opened. */

export function Pick(props: {
  label: string;
  options: readonly (readonly [value: string, title: string, ...rest: unknown[]])[];
  chosen: string;
  onPick: (value: string) => void;
}) {
  return (
    <select
      aria-label={props.label}
      value={props.chosen}
      onChange={(event) => props.onPick(event.currentTarget.value)}
    >
      {props.options.map(([value, title]) => (
        <option key={value} value={value}>
          {title}
        </option>
      ))}
    </select>
  );
}
