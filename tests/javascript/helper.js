"use strict";

const fs = require("node:fs");
const path = require("node:path");
const { JSDOM } = require("jsdom");

const ROOT = path.join(__dirname, "..", "..");
const FILES = ["openvino_text.js", "openvino_poller.js", "openvino_sizes.js", "openvino_view.js"];

// A page with the extension's scripts, run as a browser runs them.
function page(body = "", before = () => {}) {
    const dom = new JSDOM(`<!doctype html><body>${body}</body>`, { runScripts: "outside-only", pretendToBeVisual: true, url: "http://localhost:7860/" });
    dom.window.setInterval = () => 0; // a real one would keep the tests from ending
    before(dom.window);
    dom.window.URL.createObjectURL = (blob) => `blob:${blob}`;
    dom.window.URL.revokeObjectURL = () => {};
    for (const file of FILES) dom.window.eval(fs.readFileSync(path.join(ROOT, "javascript", file), "utf8"));
    return dom.window;
}

// One panel, as ov_backend/ui/status_html.py writes it.
function panel() {
    const namesByTag = {
        p: ["headline", "spoken", "timing", "result", "alert", "notice", "cache"],
        ul: ["fallbacks", "coverage"],
        div: ["shares", "comparison"],
        table: ["rows"],
        details: ["networks"],
        span: ["networks-summary"],
        progress: ["progress"],
    };
    const parts = Object.entries(namesByTag).flatMap(([tag, names]) => names.map((name) => `<${tag} data-openvino="${name}"></${tag}>`));
    const inputs = '<input data-openvino="sizes" value="512x512"><input data-openvino="batch" value="1">';
    const buttons = ["precompile", "compare", "compare-int8", "interrupt", "clear", "job"].map((name) => `<button data-openvino-action="${name}"></button>`);
    const fields = JSON.stringify(["device", "vae", "memory_mb", "config_json", "unet"]); // no control of the last one is here
    const controls = [
        '<div id="openvino_txt2img_device"><div><input value="CPU — a CPU"></div></div>',
        '<div id="openvino_txt2img_vae"><label><input type="checkbox"></label></div>',
        '<div id="openvino_txt2img_memory_mb"><input type="number" value="512"></div>',
        '<div id="openvino_txt2img_config_json"><textarea>{}</textarea></div>',
    ].join("");
    return `${controls}<section id="openvino_txt2img_view" class="openvino-view" data-openvino-token="secret" data-openvino-fields='${fields}'>${parts.join("")}${inputs}${buttons.join("")}</section>`;
}

function snapshot(changes = {}) {
    const idle = { version: 1, state: "idle", stage: null, run: null, job: null, engine: null };
    return { ...idle, networks: {}, compiled: [], messages: [], ...changes };
}

// Timers that fire when a test says so.
class Timers {
    constructor() {
        this.pending = new Map();
        this.next = 1;
        this.now = 0;
        this.performance = { now: () => this.now };
    }

    setTimeout = (call, delay) => {
        this.pending.set(this.next, { call, delay });
        return this.next++;
    };

    clearTimeout = (id) => this.pending.delete(id);

    delays() {
        return [...this.pending.values()].map(({ delay }) => delay);
    }

    fire() {
        const [[id, { call }]] = this.pending;
        this.pending.delete(id);
        call();
    }
}

module.exports = { page, panel, snapshot, Timers };
