"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { page, panel, snapshot } = require("./helper.js");

const NASTY = '<img src=x onerror="globalThis.broken=1">';

// A page with a visible panel, and a server that gives the test's answers.
function open(answers, confirmed = true) {
    const requests = [];
    const window = page(panel(), (w) => {
        w.Element.prototype.getClientRects = () => [{}]; // jsdom lays nothing out
        w.confirm = () => confirmed;
        w.setTimeout = () => 0;
        w.fetch = async (path, options) => {
            requests.push({ path, ...options });
            if (answers.gone) throw new w.TypeError("Failed to fetch");
            const name = `${options.method || "GET"} ${path.replace("./openvino/", "")}`;
            const [status, body] = answers[name] || [200, name === "GET status" ? snapshot() : {}];
            return { ok: status < 400, status, json: async () => body, blob: async () => path };
        };
    });
    const settled = async () => {
        if (window.document.readyState === "loading") await new Promise((done) => window.addEventListener("load", done));
        for (let i = 0; i < 10; i += 1) await new Promise(setImmediate);
    };
    const part = (name) => window.document.querySelector(`[data-openvino="${name}"]`);
    const press = async (name) => {
        window.document.querySelector(`[data-openvino-action="${name}"]`).click();
        await settled();
    };
    return { window, requests, settled, part, press };
}

test("a name that looks like HTML stays text, wherever it is shown", () => {
    const { window } = open({});
    const root = window.document.querySelector(".openvino-view");
    const row = {
        network: NASTY, label: NASTY, size: NASTY, batch: 1, device: NASTY, precision: NASTY, bytes: 1, compile_seconds: 1, calls: 1, hits: 0,
    };
    const run = {
        what: NASTY, active: true, seconds: 2, step: 0, steps: 0, seconds_per_step: null, average_seconds_per_step: null, error: NASTY,
        shares: { [NASTY]: 0.7 },
    };
    const network = { label: NASTY, calls: 1, in_pytorch: { [NASTY]: 1 }, fallbacks: { [NASTY]: 1 }, corrections: { [NASTY]: 1 }, int8: { text: NASTY } };
    const job = { kind: "precompile", state: "failed", text: NASTY, done: 0, total: 1, result: {} };
    const showsText = (changes, ...names) => {
        window.OpenVINOPanel.render(root, snapshot({ networks: { [NASTY]: network }, messages: [NASTY], compiled: [row], ...changes }));
        assert.equal(root.querySelectorAll("img").length, 0);
        for (const name of names) assert.ok(root.querySelector(`[data-openvino="${name}"]`).textContent.includes(NASTY), name);
    };
    showsText({ state: "running", run }, "headline", "spoken", "shares", "rows", "coverage", "fallbacks");
    showsText({ job }, "headline", "spoken");
    assert.equal(window.broken, undefined);
});

test("a tab says of a generation that it has not begun whose it is", () => {
    const { window, part } = open({});
    const root = window.document.querySelector(".openvino-view");
    const run = { what: "txt2img", active: true, seconds: 2, step: 1, steps: 4, seconds_per_step: null, error: "", shares: {}, number: 1 };
    const shown = (changes) => {
        window.OpenVINOPanel.render(root, snapshot({ state: changes.active === false ? "idle" : "running", run: { ...run, ...changes } }));
        return part("headline").textContent;
    };
    const added = (tag) => window.document.body.appendChild(window.document.createElement(tag));
    added("button").id = "txt2img_generate";
    assert.equal(shown({}), "Another page or the API: txt2img, step 1 of 4");
    assert.equal(shown({ active: false }), "Another page or the API: Done in 2.0 s");
    const bar = added("div");
    bar.className = "progressDiv";
    assert.equal(shown({ number: 2 }), "txt2img, step 1 of 4");
    bar.remove(); // the WebUI's bar may go before the generation's end is seen
    assert.equal(shown({ number: 2, step: 4 }), "txt2img, step 4 of 4");
    assert.equal(shown({ number: 2, active: false }), "Done in 2.0 s");
});

test("what is ready is compared with the page's fields", () => {
    const { window, part } = open({});
    const root = window.document.querySelector(".openvino-view");
    for (const [name, value] of [["batch_size", "1"], ["cfg_scale", "7"]]) {
        const box = window.document.createElement("div");
        box.id = `txt2img_${name}`;
        box.append(Object.assign(window.document.createElement("input"), { type: "number", value }));
        window.document.body.append(box);
    }
    const choices = { device: "CPU", vae: false, memory_mb: 512, config_json: "" };
    const job = { kind: "precompile", state: "done", text: "", result: { sizes: ["64x64"], batch: 1, guided: true, choices } };
    const shown = () => {
        window.OpenVINOPanel.render(root, snapshot({ job }));
        return part("headline").textContent;
    };
    assert.equal(shown(), "Ready for 64x64");
    window.document.querySelector("#txt2img_batch_size input").value = "4";
    window.document.querySelector("#txt2img_cfg_scale input").value = "1";
    assert.equal(shown(), "Ready for 64x64, batch size 1, CFG scale above 1");
    window.document.querySelector("#openvino_txt2img_vae input").checked = true;
    assert.equal(shown(), "Nothing is running");
});

test("the status is requested with the page's token and shown", async () => {
    const run = { what: "Generating", active: true, step: 1, steps: 4, seconds_per_step: 1, average_seconds_per_step: 1, shares: {} };
    const { requests, settled, part, window } = open({ "GET status": [200, snapshot({ state: "running", run })] });
    await settled();
    assert.equal(requests[0].path, "./openvino/status");
    assert.equal(requests[0].headers["X-OpenVINO-Token"], "secret");
    assert.equal(part("headline").textContent, "Generating, step 1 of 4");
    assert.equal(part("progress").value, 0.25);
    assert.equal(part("progress").hidden, false);
    const disabled = (name) => window.document.querySelector(`[data-openvino-action="${name}"]`).disabled;
    assert.deepEqual([disabled("interrupt"), disabled("clear"), disabled("precompile"), disabled("compare")], [false, true, true, true]);
});

test("a bar without a known end is indeterminate", () => {
    const { window, part } = open({});
    const run = { what: "Generating", active: true, step: 0, steps: 0, seconds_per_step: null, average_seconds_per_step: null, shares: {} };
    window.OpenVINOPanel.render(window.document.querySelector("section"), snapshot({ state: "running", run }));
    assert.equal(part("progress").hasAttribute("value"), false);
});

test("an element whose content does not change is not drawn again", () => {
    const { window, part } = open({});
    const root = window.document.querySelector("section");
    const unchanged = snapshot({ messages: ["one"] });
    window.OpenVINOPanel.render(root, unchanged);
    const first = part("fallbacks").firstChild;
    window.OpenVINOPanel.render(root, unchanged);
    assert.equal(part("fallbacks").firstChild, first);
});

test("precompile sends the sizes; nonsense gives an alert and is not sent", async () => {
    const { requests, part, press, settled } = open({});
    await settled();
    await press("precompile");
    const sent = requests.find((request) => request.method === "POST");
    assert.equal(sent.path, "./openvino/precompile");
    const choices = { device: "CPU — a CPU", vae: false, memory_mb: 512, config_json: "{}" };
    assert.deepEqual(JSON.parse(sent.body), { sizes: [[512, 512]], batch: 1, choices });
    part("sizes").value = "big";
    await press("precompile");
    assert.match(part("alert").textContent, /"big" is no size/);
    assert.equal(requests.filter((request) => request.method === "POST").length, 1);
});

test("the server's message is shown when it refuses", async () => {
    const { part, press, settled } = open({ "POST compare": [409, { error: "Something is running already." }] });
    await settled();
    await press("compare");
    assert.equal(part("alert").textContent, "Something is running already.");
});

test("a refused name is explained where the status would be", async () => {
    const error = "The page was opened as pc.example; add it to the setting openvino_allowed_hosts.";
    const { part, settled } = open({ "GET status": [403, { error }] });
    await settled();
    assert.match(part("alert").textContent, /pc\.example; add it to the setting openvino_allowed_hosts\./);
});

test("the cache is cleared only after a confirmation", async () => {
    const answers = { "GET cache": [200, { kept: true, entries: 2, bytes: 10, max_bytes: 100 }], "DELETE cache": [200, { removed: 2 }] };
    const no = open(answers, false);
    await no.settled();
    await no.press("clear");
    assert.equal(no.requests.filter((request) => request.method === "DELETE").length, 0);
    const yes = open(answers, true);
    await yes.settled();
    await yes.press("clear");
    assert.equal(yes.requests.filter((request) => request.method === "DELETE").length, 1);
    assert.equal(yes.part("notice").textContent, "2 graphs removed.");
    assert.equal(yes.part("alert").textContent, "", "it is no problem");
});

test("a hidden tab sends no request", async () => {
    const { window, requests, settled } = open({});
    await settled();
    const before = requests.length;
    Object.defineProperty(window.document, "hidden", { value: true, configurable: true });
    window.document.dispatchEvent(new window.Event("visibilitychange"));
    await settled();
    assert.equal(requests.length, before);
});

test("an alert says that the server is gone, and goes away when it is back", async () => {
    const answers = { "GET status": [502, {}] };
    const { window, part, settled, press } = open(answers);
    await settled();
    assert.match(part("alert").textContent, /cannot be read: The server answered 502/);
    answers["GET status"] = [200, snapshot()];
    await press("compare");
    await settled();
    assert.equal(part("alert").textContent, "");
    assert.equal(window.document.querySelector("section").dataset.openvinoState, "idle");
});

test("success, an interruption and a failure look different, and what runs looks like none of them", () => {
    const { window } = open({});
    const root = window.document.querySelector("section");
    const run = { what: "Generating", active: false, seconds: 2, step: 1, steps: 1, seconds_per_step: null, average_seconds_per_step: null, shares: {} };
    const outcome = (changes) => {
        window.OpenVINOPanel.render(root, snapshot(changes));
        return root.dataset.openvinoOutcome;
    };
    assert.equal(outcome({}), "");
    assert.equal(outcome({ run: { ...run, error: "" } }), "success");
    assert.equal(outcome({ run: { ...run, error: "Interrupted." } }), "interrupted");
    assert.equal(outcome({ run: { ...run, error: "out of memory" } }), "failure");
    assert.equal(outcome({ state: "running", run: { ...run, active: true, error: "" } }), "");
});

test("nothing but a line is shown while nothing has run, and Interrupt only while something runs", () => {
    const { window, part } = open({});
    const root = window.document.querySelector("section");
    const interrupt = window.document.querySelector('[data-openvino-action="interrupt"]');
    window.OpenVINOPanel.render(root, snapshot());
    assert.equal(part("headline").textContent, "Nothing is running");
    for (const name of ["progress", "shares", "fallbacks", "coverage", "networks", "comparison"]) assert.equal(part(name).hidden, true, name);
    for (const name of ["timing", "result", "alert", "notice"]) assert.equal(part(name).textContent, "", name);
    assert.equal(interrupt.hidden, true);
    window.OpenVINOPanel.render(root, snapshot({ state: "preparing" }));
    assert.equal(interrupt.hidden, false);
});

test("int8 can be compared only where a network uses it", () => {
    const { window } = open({});
    const root = window.document.querySelector("section");
    const button = window.document.querySelector('[data-openvino-action="compare-int8"]');
    const hidden = (state) => {
        const unet = { label: "UNet", calls: 1, int8: { state, text: "int8" } };
        window.OpenVINOPanel.render(root, snapshot({ networks: { unet } }));
        return button.hidden;
    };
    assert.deepEqual(["on", "calibrating", "off"].map(hidden), [false, false, true]);
});

test("both pictures of a comparison are fetched with the token, once, and go away", async () => {
    const { window, requests, part, settled } = open({});
    await settled();
    const root = window.document.querySelector("section");
    const result = {
        size: "64x64", pytorch_seconds: 1, openvino_seconds: 0.5, pictures: true, pytorch_picture_seconds: 4, openvino_picture_seconds: 2, psnr_db: 50,
    };
    const job = { number: 3, kind: "compare", state: "done", text: "", done: 2, total: 2, result };
    window.OpenVINOPanel.render(root, snapshot({ job }));
    window.OpenVINOPanel.render(root, snapshot({ job }));
    await settled();
    const fetched = requests.filter(({ path }) => path.includes("compare/"));
    assert.deepEqual(fetched.map(({ path }) => path), ["./openvino/compare/pytorch", "./openvino/compare/openvino"]);
    assert.ok(fetched.every(({ headers }) => headers["X-OpenVINO-Token"] === "secret"));
    const captions = [...part("comparison").querySelectorAll("figcaption")].map((caption) => caption.textContent);
    assert.deepEqual(captions, ["PyTorch, 4.0 s", "OpenVINO, 2.0 s"]);
    window.OpenVINOPanel.render(root, snapshot());
    assert.equal(part("comparison").hidden, true);
    assert.equal(part("comparison").children.length, 0);
});

test("the WebUI's own size is proposed to be prepared until another one is written", () => {
    const { window, part } = open({});
    const root = window.document.querySelector("section");
    const field = (name, value) => `<div id="txt2img_${name}"><input type="number" value="${value}"><input type="range" value="${value}"></div>`;
    window.document.body.insertAdjacentHTML("beforeend", field("width", 640) + field("height", 384) + field("batch_size", 2)); // eslint-disable-line no-restricted-properties
    const proposed = () => {
        window.OpenVINOPanel.render(root, snapshot());
        return [part("sizes").value, part("batch").value];
    };
    assert.deepEqual(proposed(), ["640x384", "2"]);
    window.document.querySelector("#txt2img_width input").value = "512";
    assert.deepEqual(proposed(), ["512x384", "2"]);
    part("sizes").value = "64x64";
    window.document.querySelector("#txt2img_width input").value = "768";
    assert.deepEqual(proposed(), ["64x64", "2"]);
});

test("the page's size is sent once its fields have settled, with the token; a size that is opened or unfinished is not", async () => {
    const { window, requests, settled } = open({ "POST ready": [422, { error: "No." }] });
    let look;
    window.setInterval = (call) => { look = call; };
    let now = 0;
    Object.defineProperty(window, "performance", { value: { now: () => now } });
    const field = (name, value) => `<div id="txt2img_${name}"><input type="number" value="${value}"></div>`;
    window.document.body.insertAdjacentHTML("beforeend", field("width", 512) + field("height", 384) + field("batch_size", 2)); // eslint-disable-line no-restricted-properties
    await settled(); // the page is ready, and looks from now on
    const width = window.document.querySelector("#txt2img_width input");
    const after = async (ms, value) => {
        width.value = value;
        look();
        now += ms;
        look();
        await settled();
        return requests.filter(({ path }) => path.endsWith("/ready"));
    };
    assert.deepEqual(await after(2000, "512"), []);
    assert.deepEqual(await after(900, "640"), []);
    assert.deepEqual(await after(900, "6400"), []);
    assert.deepEqual(await after(2000, ""), []);
    const [sent, ...more] = await after(1000, "640");
    assert.deepEqual(JSON.parse(sent.body), { size: [640, 384], batch: 2, from_picture: false });
    assert.equal(sent.headers["X-OpenVINO-Token"], "secret");
    assert.equal(more.length, 0);
    assert.equal((await after(5000, "640")).length, 1);
    assert.equal((await after(1000, "512")).length, 2);
    assert.equal(window.document.querySelector('[data-openvino="alert"]').textContent, "", "a refusal is nobody's news");
});

test("Interrupt is answered at once, and until what runs is over", async () => {
    const running = { what: "Making 64x64", active: true, seconds: 2, step: 3, steps: 9, seconds_per_step: null, average_seconds_per_step: null, error: "" };
    const { window, settled, part, press } = open({ "GET status": [200, snapshot({ state: "running", run: running })] });
    const root = window.document.querySelector(".openvino-view");
    await settled();
    assert.equal(part("headline").textContent, "Making 64x64, step 3 of 9");
    const pressed = press("interrupt");
    assert.equal(part("headline").textContent, "Interrupting");
    await pressed;
    window.OpenVINOPanel.render(root, snapshot({ state: "running", run: running }));
    assert.equal(part("headline").textContent, "Interrupting");
    const left = { label: "Compiling UNet", network: "unet", stage: "compile", seconds: 9, number: 4, stages: 4, left_over: true };
    window.OpenVINOPanel.render(root, snapshot({ state: "preparing", stage: left, run: { ...running, active: false, error: "Interrupted." } }));
    assert.equal(part("headline").textContent, "Interrupted after 2.0 s", "what is still prepared is no news");
    assert.equal(part("progress").hidden, true);
    assert.equal(window.document.querySelector('[data-openvino-action="compare"]').disabled, true, "the server would refuse it");
});

test("a server that does not answer has ended", async () => {
    const { settled, part } = open({ gone: true });
    await settled();
    assert.match(part("alert").textContent, /^The server has ended/);
});

test("each value of a compiled network is told apart where there is no room for a table", () => {
    const { window, part } = open({});
    const root = window.document.querySelector(".openvino-view");
    const headings = window.document.createElement("thead");
    for (const text of ["Network", "Size"]) headings.append(Object.assign(window.document.createElement("th"), { textContent: text }));
    part("networks").append(headings);
    const row = { network: "unet", label: "UNet", variant: "154 tokens", size: "512x512", batch: 2, device: "CPU", precision: "f32", bytes: 1, compile_seconds: 1, calls: 1, hits: 0 };
    window.OpenVINOPanel.render(root, snapshot({ compiled: [row] }));
    const [name, size] = root.querySelectorAll("[data-openvino=rows] :is(th, td)");
    assert.deepEqual([name.textContent, size.dataset.heading], ["UNet, 154 tokens", "Size"]);
});
