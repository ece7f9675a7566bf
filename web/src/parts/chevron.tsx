/** Says that a row holds others, and whether they are in sight. */

export function Chevron(props: { open: boolean; class?: string }) {
  return (
    <svg class={props.class} data-open={props.open} viewBox="0 0 10 10" aria-hidden="true">
      <path d="M3 1.5 7 5 3 8.5" fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
  );
}
