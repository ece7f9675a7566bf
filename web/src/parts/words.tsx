/** A sentence in which names and commands stand between backquotes, as on the command line; here they are code. */

export function Words(props: { text: string }) {
  const parts = props.text.split("`");
  // A backquote without its partner is shown as it is.
  if (parts.length % 2 === 0) return <>{props.text}</>;
  return <>{parts.map((part, index) => (index % 2 ? <code key={index}>{part}</code> : part))}</>;
}
