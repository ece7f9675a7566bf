/** A button that does something on the page, and sends no form. */

import type { ComponentProps } from "preact";

export function Button(props: ComponentProps<"button">) {
  return <button type="button" {...props} />;
}
