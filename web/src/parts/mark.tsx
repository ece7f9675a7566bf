/** The sign of Kinetoscope: frames of a film strip, one of them lit. */

export function Mark() {
  return (
    <svg width="22" height="22" viewBox="0 0 22 22" aria-hidden="true">
      <rect x="1" y="3" width="20" height="16" rx="3" fill="none" stroke="currentColor" stroke-width="1.6" />
      <path d="M1 7h20M1 15h20M8 7v8M14 7v8" stroke="currentColor" stroke-width="1.3" />
      <rect x="8.6" y="7.6" width="4.8" height="6.8" fill="var(--accent)" />
    </svg>
  );
}
