"use strict";

const js = require("@eslint/js");

const page = Object.fromEntries(
    ["AbortController", "CustomEvent", "Element", "Event", "URL", "clearTimeout", "document", "fetch", "globalThis", "setInterval", "setTimeout"].map((name) => [
        name,
        "readonly",
    ]),
);
const node = Object.fromEntries(["__dirname", "module", "require", "setImmediate"].map((name) => [name, "readonly"]));
const own = Object.fromEntries(["OpenVINOPanel", "OpenVINOPoller", "OpenVINOSizes", "OpenVINOText"].map((name) => [name, "readonly"]));

module.exports = [
    js.configs.recommended,
    {
        languageOptions: { ecmaVersion: 2022, sourceType: "script", globals: { ...page, ...own } },
        linterOptions: { reportUnusedDisableDirectives: "error" },
        rules: {
            eqeqeq: "error",
            "no-implicit-globals": "error",
            "no-restricted-properties": [
                "error",
                { property: "innerHTML", message: "Set text as text: names come from files." },
                { property: "outerHTML", message: "Set text as text: names come from files." },
                { property: "insertAdjacentHTML", message: "Set text as text: names come from files." },
            ],
            "no-var": "error",
            "prefer-const": "error",
            strict: ["error", "global"],
        },
    },
    { files: ["tests/javascript/**", "eslint.config.js"], languageOptions: { sourceType: "commonjs", globals: node } },
];
