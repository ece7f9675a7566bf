import { readFileSync } from "node:fs";
import { defineConfig, type Plugin } from "vite";

/** What is in the page of other projects: their license asks that its text goes with every copy. */
const BUNDLED = ["preact", "@preact/signals", "@preact/signals-core", "@uwdata/flechette", "uplot"];

function notices(): string {
  const texts = new Map<string, string[]>();
  for (const name of BUNDLED) {
    const folder = new URL(`./node_modules/${name}/`, import.meta.url);
    const { version } = JSON.parse(readFileSync(new URL("package.json", folder), "utf8"));
    const lines = readFileSync(new URL("LICENSE", folder), "utf8").trim().split("\n");
    const copyright = lines.find((line) => line.startsWith("Copyright"));
    if (!copyright) throw new Error(`the license of ${name} names no holder`);
    const text = lines.filter((line) => line !== copyright).join("\n");
    texts.set(text, [...(texts.get(text) ?? []), `${name} ${version}: ${copyright}`]);
  }
  const all = [...texts].map(([text, owners]) => `${owners.join("\n")}\n\n${text}`).join("\n\n");
  if (/--!?>/.test(all)) throw new Error("a license would end the comment that it stands in");
  return `<!--\nThis page contains:\n\n${all}\n-->`;
}

/** Puts the one script and the one style sheet into the page, so that the page is one file that needs no other. */
function onePage(): Plugin {
  return {
    name: "one-page",
    enforce: "post",
    generateBundle(_options, bundle) {
      const page = bundle["index.html"];
      if (page?.type !== "asset") throw new Error("the build has no index.html");
      let html = String(page.source);
      for (const [name, file] of Object.entries(bundle)) {
        if (file.type === "chunk") {
          // A closing tag within the script would end it.
          const code = file.code.replaceAll("</script", "<\\/script").trim();
          html = html.replace(/<script type="module"[^>]*><\/script>\s*/, "");
          html = html.replace("</body>", () => `<script type="module">${code}</script>\n  </body>`);
        } else if (name.endsWith(".css")) {
          const style = String(file.source).trim();
          html = html.replace(/<link rel="stylesheet"[^>]*>/, () => `<style>${style}</style>`);
        } else continue;
        delete bundle[name];
      }
      page.source = html.replace("<html", () => `${notices()}\n<html`);
    },
  };
}

export default defineConfig({
  base: "./",
  plugins: [onePage()],
  build: {
    target: "es2022",
    // The first of each that nest rules and have popovers, which the page needs in any case.
    cssTarget: ["chrome120", "firefox125", "safari17.2"],
    outDir: "../src/kinetoscope/viewer/static",
    emptyOutDir: true,
    modulePreload: false,
    assetsInlineLimit: 1_000_000,
    cssCodeSplit: false,
    reportCompressedSize: true,
  },
  // Children as arguments take less room in the page than as properties.
  oxc: {
    jsx: { runtime: "classic", pragma: "createElement", pragmaFrag: "Fragment" },
    jsxInject: `import { createElement, Fragment } from "preact";`,
  },
});
