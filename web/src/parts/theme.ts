/** Dark or light: as the system says, until the person at the page says otherwise. */

import { effect, signal } from "@preact/signals";

export type Theme = "dark" | "light";

const KEPT = "kinetoscope.theme";
const system = matchMedia("(prefers-color-scheme: dark)");

export const theme = signal<Theme>(kept() ?? (system.matches ? "dark" : "light"));

system.addEventListener("change", () => {
  if (kept() === null) theme.value = system.matches ? "dark" : "light";
});

effect(() => {
  document.documentElement.dataset["theme"] = theme.value;
});

export function turnTheme(): void {
  theme.value = theme.value === "dark" ? "light" : "dark";
  keep(theme.value);
}

/** A color of the theme, for what is drawn on a canvas. */
export function color(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function kept(): Theme | null {
  try {
    const value = localStorage.getItem(KEPT);
    return value === "dark" || value === "light" ? value : null;
  } catch {
    return null; // some browsers give a page from a file no storage
  }
}

function keep(value: Theme): void {
  try {
    localStorage.setItem(KEPT, value);
  } catch {
    return; // then it is chosen again next time
  }
}
