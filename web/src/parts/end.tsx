/** A text whose end tells most, such as a path: where there is no room it is cut at its beginning. */

export function End(props: { children: string }) {
  return (
    <span class="end">
      <bdi>{props.children}</bdi>
    </span>
  );
}
