import { defineConfig, type Plugin } from "vite";

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
      page.source = html;
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
