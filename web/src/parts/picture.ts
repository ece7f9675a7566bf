/** A picture of the page as it is seen: an SVG that holds it, or a PNG of that. */

const XHTML = "http://www.w3.org/1999/xhtml";
const SVG = "http://www.w3.org/2000/svg";
/** What a canvas is replaced by keeps these, because the rules of the page are for canvases. */
const KEPT = ["position", "top", "left", "display", "grid-column", "grid-row", "z-index"] as const;
/** Browsers draw no larger pictures. */
const MOST_PIXELS = 16_000;

/** The main part of the page, with all of what scrolls, as an SVG. */
export function svgOf(page: HTMLElement): { text: string; width: number; height: number } {
  const width = page.clientWidth;
  const height = Math.min(page.scrollHeight, MOST_PIXELS);
  const copy = page.cloneNode(true) as HTMLElement;
  const canvases = page.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, index) => {
    const seen = canvases[index];
    if (seen) canvas.replaceWith(imageOf(seen));
  });
  const root = getComputedStyle(document.documentElement);
  const around = document.createElementNS(XHTML, "div") as HTMLElement;
  const rules = document.createElementNS(XHTML, "style");
  rules.textContent = [...document.querySelectorAll("style")].map((style) => style.textContent).join("\n");
  Object.assign(around.style, {
    width: `${width}px`,
    height: `${height}px`,
    font: root.font,
    color: root.color,
  });
  Object.assign(around.style, {
    background: root.backgroundColor,
    fontVariantNumeric: root.fontVariantNumeric,
  });
  Object.assign(copy.style, { width: `${width}px`, height: `${height}px`, overflow: "hidden" });
  around.append(rules, copy);
  const foreign = document.createElementNS(SVG, "foreignObject");
  const picture = document.createElementNS(SVG, "svg");
  for (const element of [picture, foreign]) {
    element.setAttribute("width", String(width));
    element.setAttribute("height", String(height));
  }
  // The picture is a document of its own: its root has the theme, and the size of a letter that lengths count in.
  picture.setAttribute("data-theme", document.documentElement.dataset["theme"] ?? "");
  picture.style.fontSize = root.fontSize;
  foreign.append(around);
  picture.append(foreign);
  return { text: new XMLSerializer().serializeToString(picture), width, height };
}

function imageOf(canvas: HTMLCanvasElement): HTMLImageElement {
  const image = new Image();
  image.src = canvas.width && canvas.height ? canvas.toDataURL() : "";
  const style = getComputedStyle(canvas);
  for (const name of KEPT) image.style.setProperty(name, style.getPropertyValue(name));
  Object.assign(image.style, { width: `${canvas.clientWidth}px`, height: `${canvas.clientHeight}px` });
  return image;
}

/** The same as a PNG, as sharp as the screen. */
export async function pngOf(page: HTMLElement): Promise<Blob> {
  const { text, width, height } = svgOf(page);
  const image = new Image();
  // As letters of the address: from another source the browser would not give the pixels back.
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  const ratio = Math.min(devicePixelRatio || 1, MOST_PIXELS / Math.max(width, height));
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((done, fail) => {
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The picture is too large."))), "image/png");
  });
}
