/** Saving a text as a file of the person at the page. */

export function save(name: string, content: BlobPart, type: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  // The browser has taken it when the next task runs.
  setTimeout(() => URL.revokeObjectURL(link.href));
}
