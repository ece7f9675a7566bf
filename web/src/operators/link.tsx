/** An operator by its name, where other pages list it. */

import { Middle } from "../parts/middle";
import { address } from "../router";
import { plain } from "../timeline/names";

export function OperatorLink(props: { name: string; kind: string }) {
  const { name, kind } = props;
  return (
    <a href={address("operators", { name, kind })} title={name.slice(0, 2000)}>
      <Middle>{plain(name)}</Middle>
    </a>
  );
}
