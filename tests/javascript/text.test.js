"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { page, snapshot } = require("./helper.js");

const text = page().OpenVINOText;
const copy = (value) => JSON.parse(JSON.stringify(value)); // values from jsdom's page have classes of their own

const RUN = {
    what: "Generating", active: true, seconds: 10, step: 3, steps: 20, seconds_per_step: 0.5, average_seconds_per_step: 1.25,
    shares: {}, error: "",
};
const STAGE = { network: "unet", stage: "convert", label: "Converting UNet 512x512", seconds: 12.3, number: 2, stages: 3 };

test("amounts are written with their units", () => {
    assert.deepEqual([0, 1023, 2048, 5 * 1024 ** 2, 300 * 1024 ** 3].map(text.bytes), ["0 B", "1023 B", "2.0 KiB", "5.0 MiB", "300 GiB"]);
    assert.deepEqual([0.0312, 2.08, 125].map(text.seconds), ["31 ms", "2.1 s", "2 min 5 s"]);
    assert.equal(text.seconds(null), "");
});

test("a stage comes before the steps, in the headline and in the bar", () => {
    const preparing = snapshot({ state: "preparing", stage: STAGE, run: RUN });
    assert.equal(text.headline(preparing), "Converting UNet 512x512");
    assert.equal(text.progress(preparing), 0.5);
    assert.match(text.timing(preparing), /^12\.3 s so far, part 2 of 3/);
    const sampling = snapshot({ state: "running", run: RUN });
    assert.equal(text.headline(sampling), "Generating, step 3 of 20");
    assert.equal(text.progress(sampling), 0.15);
    assert.equal(text.timing(sampling), "500 ms for the last step, 1.3 s per step on average, about 22 s left");
});

test("a screen reader is told of stages, not of every step", () => {
    const at = (step) => text.spoken(snapshot({ state: "running", run: { ...RUN, step } }));
    assert.equal(at(3), at(4));
    assert.equal(text.spoken(snapshot({ stage: STAGE, run: RUN })), "Converting UNet 512x512");
});

test("the headline says that a generation is over, and why", () => {
    assert.equal(text.headline(snapshot()), "Nothing is running");
    assert.equal(text.headline(snapshot({ run: { ...RUN, active: false } })), "Done in 10.0 s");
    assert.equal(text.headline(snapshot({ run: { ...RUN, active: false, error: "Interrupted." } })), "Interrupted after 10.0 s");
    assert.equal(text.headline(snapshot({ run: { ...RUN, active: false, error: "no memory" } })), "Ended: no memory");
});

test("an unknown number of steps gives no progress", () => {
    assert.equal(text.progress(snapshot({ run: { ...RUN, steps: 0 } })), null);
});

test("shares list networks by size, then preparing and the rest, and leave out what is too small to see", () => {
    const shares = { other: 0.1, unet: 0.2, vae_decode: 0.5, preparing: 0.199, text_encoder: 0.001 };
    const networks = { unet: { label: "UNet" }, vae_decode: { label: "VAE decoder" } };
    const shown = text.shares(snapshot({ run: { ...RUN, shares }, networks }));
    assert.deepEqual(copy(shown.map((share) => share.text)), ["VAE decoder 50 %", "UNet 20 %", "Preparing 20 %", "PyTorch and the rest 10 %"]);
    const released = text.shares(snapshot({ run: { ...RUN, shares, labels: { vae_decode: "VAE decoder" } }, networks: {} }));
    assert.equal(released[0].text, "VAE decoder 50 %", "a network that is released keeps its label");
});

test("percents of shares sum to 100", () => {
    const networks = { a: { label: "a" }, b: { label: "b" }, c: { label: "c" } };
    const texts = (shares) => copy(text.shares(snapshot({ run: { ...RUN, shares }, networks })).map((share) => share.text));
    assert.deepEqual(texts({ a: 1 / 3, b: 1 / 3, c: 1 / 3 }), ["A 34 %", "B 33 %", "C 33 %"]);
    assert.deepEqual(texts({ a: 0.335, b: 0.335, preparing: 0.325, other: 0.005 }), ["A 34 %", "B 34 %", "Preparing 32 %"]);
    for (const shares of [{ a: 0.9949, b: 0.0051 }, { a: 0.0333, b: 0.4467, preparing: 0.02, other: 0.5 }, { a: 0.1234, other: 0.8766 }]) {
        const sum = texts(shares).map((each) => Number(/(\d+) %/.exec(each)[1])).reduce((x, y) => x + y, 0);
        assert.equal(sum, 100);
    }
});

test("a comparison names the faster one, also when it is PyTorch, and the likeness of the pictures", () => {
    const job = (pytorch, openvino, more = {}) => ({
        kind: "compare", state: "done", text: "", result: { size: "512x512", pytorch_seconds: pytorch, openvino_seconds: openvino, ...more },
    });
    assert.equal(text.headline(snapshot({ job: job(7.3, 2.0) })), "One step: OpenVINO 3.65 times as fast");
    assert.match(text.headline(snapshot({ job: job(1, 2) })), /One step: PyTorch 2\.00 times as fast\. Leave OpenVINO off/);
    assert.equal(text.jobResult(job(7.3, 2.0)), "One step of 512x512: PyTorch 7.3 s, OpenVINO 2.0 s.");
    const pictures = { pictures: true, pytorch_picture_seconds: 150, openvino_picture_seconds: 42, psnr_db: 47.125 };
    assert.match(text.jobResult(job(7.3, 2.0, pictures)), /^The picture: PyTorch 2 min 30 s, OpenVINO 42\.0 s\. PSNR 47\.1 dB\. One step/);
    assert.match(text.jobResult(job(7.3, 2.0, { ...pictures, psnr_db: null })), /Both pictures are equal/);
    const unlike = job(7.3, 2.0, { ...pictures, psnr_db: 24.9 });
    assert.match(text.jobResult(unlike), /PSNR 24\.9 dB: the pictures differ visibly\./);
    const outcomes = [pictures, { ...pictures, psnr_db: null }, { ...pictures, psnr_db: 24.9 }].map((each) => text.outcome(snapshot({ job: job(7.3, 2.0, each) })));
    assert.deepEqual(outcomes, ["success", "success", "failure"], "what is faster and another picture is no success");
    assert.equal(text.headline(snapshot({ job: job(1, 2, pictures) })), "The picture: OpenVINO 3.57 times as fast", "the picture counts, not the step");
    const int8 = { sides: { own: "bf16", int8: "int8" }, own_seconds: 1, int8_seconds: 0.8 };
    assert.equal(text.headline(snapshot({ job: { ...job(), result: { size: "64x64", ...int8 } } })), "One step: int8 1.25 times as fast");
    assert.equal(text.jobResult({ ...job(), result: { size: "64x64", ...int8 } }), "One step of 64x64: bf16 1.0 s, int8 800 ms.");
    assert.equal(text.jobResult(null), "");
});

test("the headline says how a job ended, and a job that is over is newer than the last generation", () => {
    const run = { ...RUN, active: false };
    const job = (state, changes = {}) => ({ kind: "precompile", state, text: "", result: { sizes: ["64x64", "96x64"] }, ...changes });
    assert.equal(text.headline(snapshot({ run, job: job("done") })), "Ready for 64x64, 96x64");
    const other = snapshot({ run: { ...run, shares: { unet: 1 } }, job: job("done") });
    assert.deepEqual([text.timing(other), text.shares(other).length], ["", 0], "what the generation took is not the job's");
    assert.equal(text.headline(snapshot({ run, job: job("cancelled", { text: "Interrupted." }) })), "Interrupted");
    assert.equal(text.headline(snapshot({ run, job: job("failed", { text: "No model is loaded." }) })), "Ended: No model is loaded.");
    assert.equal(text.headline(snapshot({ run })), "Done in 10.0 s");
    assert.deepEqual(
        ["done", "failed", "cancelled"].map((state) => text.outcome(snapshot({ job: job(state, { text: state === "cancelled" ? "Interrupted." : "x" }) }))),
        ["success", "failure", "interrupted"],
    );
});

test("coverage and fallbacks name network, operator, count and reason", () => {
    const networks = {
        unet: { label: "UNet", calls: 4, in_pytorch: {}, fallbacks: {} },
        vae_decode: { label: "VAE decoder", calls: 1, in_pytorch: { "aten.foo": 2 }, fallbacks: { "a reason": 1 } },
        text_encoder: { label: "text encoder", calls: 0, in_pytorch: {}, fallbacks: {}, corrections: { "not finite": 2 } },
        unet_2: { label: "UNet #2", calls: 0, int8: { text: "int8: a sentence", error: 0.01, measured: "your own comparison decides" } },
        unet_3: { label: "UNet #3", calls: 0, int8: {} },
    };
    assert.deepEqual(copy(text.coverage(snapshot({ networks }))), ["UNet: 100 % in OpenVINO", "VAE decoder: in PyTorch aten.foo (2)"]);
    assert.deepEqual(copy(text.fallbacks(snapshot({ networks }))), [
        "VAE decoder ran in PyTorch 1 time: a reason.",
        "Text encoder, 2 times: not finite.",
        "UNet #2: int8: a sentence",
        "UNet #2: your own comparison decides",
    ]);
});

test("a reason is said once, with one full stop", () => {
    const networks = { unet: { label: "UNet", calls: 2, in_pytorch: {}, fallbacks: { "no such property.": 2 } } };
    const messages = ["UNet in PyTorch: no such property.", "VAE in PyTorch: it is split.", "A file is missing."];
    assert.deepEqual(copy(text.notes(snapshot({ networks, messages }))), ["UNet ran in PyTorch 2 times: no such property.", ...messages.slice(1)]);
});

test("two sides within 5 percent are equally fast", () => {
    const job = (pytorch, openvino) => ({ kind: "compare", state: "done", text: "", result: { size: "64x64", pytorch_seconds: pytorch, openvino_seconds: openvino } });
    for (const [a, b] of [[1, 1], [1.04, 1], [1, 1.04]]) {
        assert.equal(text.headline(snapshot({ job: job(a, b) })), "OpenVINO and PyTorch are about equally fast here");
    }
    assert.equal(text.headline(snapshot({ job: job(1.06, 1) })), "One step: OpenVINO 1.06 times as fast");
});

test("what is prepared is news only where the page asks for it", () => {
    const choices = { device: "CPU", precision: "auto", unet: true, vae: true, text_encoder: false, config_json: '{"A": 1}' };
    const result = { sizes: ["64x64"], batch: 1, guided: true, choices };
    const page = { choices: { ...choices, device: "CPU — a CPU" }, batch: 1, guided: true };
    const shown = (changes, of = result) => {
        const seen = text.onPage(snapshot({ job: { kind: "precompile", state: "done", result: of } }), { ...page, ...changes });
        return [text.headline(seen), text.outcome(seen)];
    };
    const nothing = ["Nothing is running", ""];
    assert.deepEqual(shown({}), ["Ready for 64x64", "success"]);
    assert.deepEqual(shown({ choices: { ...page.choices, vae: false } }), ["Ready for 64x64", "success"], "a network less needs nothing more");
    assert.deepEqual(shown({ choices: { ...page.choices, text_encoder: true } }), nothing);
    assert.deepEqual(shown({ choices: { ...page.choices, precision: "f32" } }), nothing);
    assert.deepEqual(shown({ choices: { ...page.choices, device: "GPU — a GPU" } }), nothing);
    assert.deepEqual(shown({ choices: { ...page.choices, config_json: "{}" } }), nothing);
    assert.deepEqual(shown({ choices: { ...page.choices, config_json: '{ "A":1 }' } }), ["Ready for 64x64", "success"]);
    assert.deepEqual(shown({ batch: 4 }), ["Ready for 64x64, batch size 1", "success"]);
    assert.deepEqual(shown({ guided: false }), ["Ready for 64x64, CFG scale above 1", "success"]);
    assert.deepEqual(shown({}, { sizes: ["64x64"], batch: 2, guided: false }), ["Ready for 64x64, batch size 2, CFG scale 1", "success"]);
});

test("a network that the last generation has not called says nothing about it", () => {
    const networks = { unet: { label: "UNet", calls: 9, run_calls: 0, in_pytorch: { "aten.foo": 1 } }, vae: { label: "VAE", calls: 9, run_calls: 1 } };
    assert.deepEqual(copy(text.coverage(snapshot({ networks }))), ["VAE: 100 % in OpenVINO"]);
});

test("sizes that no picture can have are no sizes", () => {
    const good = [[64, 64, 1], [512, 768, 4], [4096, 4096, 1], [64, 4096, 16]];
    const bad = [[65, 64, 1], [0, 64, 1], [64, 4104, 1], [64, 64, 0], [64, 64, 17], [64, 64, 1.5], [4096, 4096, 2], [NaN, 64, 1]];
    assert.deepEqual(good.map((each) => text.isSize(...each)), good.map(() => true));
    assert.deepEqual(bad.map((each) => text.isSize(...each)), bad.map(() => false));
});

test("reasons of an earlier generation are not shown", () => {
    const network = { label: "UNet", calls: 9, fallbacks: { old: 2, new: 1 }, corrections: { old: 1 }, run_corrections: {} };
    const shown = (run_fallbacks) => ["fallbacks", "coverage"].flatMap((name) => copy(text[name](snapshot({ networks: { unet: { ...network, run_fallbacks } } }))));
    assert.deepEqual(shown({ new: 1 }), ["UNet ran in PyTorch 1 time: new."]);
    assert.deepEqual(shown({}), ["UNet: 100 % in OpenVINO"]);
});

test("sizes are read in the spellings that people use", () => {
    assert.deepEqual(copy(text.parseSizes("512x512, 768 X 512;640×384")), { sizes: [[512, 512], [768, 512], [640, 384]] });
    for (const bad of ["", "  ", "512", "512x", "axb", "512x512x512", "-8x8"]) {
        assert.match(text.parseSizes(bad).error, /for example/, bad);
    }
});

test("the cache is summarised", () => {
    assert.equal(text.cacheSummary({ kept: true, entries: 1, bytes: 2048, max_bytes: 1024 ** 3 }), "1 prepared graph on disk, 2.0 KiB of at most 1.0 GiB");
    assert.equal(text.cacheSummary({ kept: false }), "Nothing is kept on disk.");
});

test("a row of a compiled network has as many cells as the table has columns", () => {
    const row = { label: "UNet", size: "512x512", batch: 2, device: "CPU", precision: "f32", bytes: 2048, compile_seconds: 2.5, calls: 3, hits: 2 };
    assert.deepEqual(copy(text.cells(row)), ["UNet", "512x512", "2", "CPU", "f32", "2.0 KiB", "2.5 s", "3", "2"]);
    assert.equal(text.compiledSummary(snapshot({ compiled: [row] })), "1 compiled network");
    const engine = { bytes: 1024 ** 3, budget_bytes: 2 * 1024 ** 3, low_memory: { offloaded_bytes: 1024 ** 3, reason: "" } };
    const held = "1 compiled network, 1.0 GiB of at most 2.0 GiB";
    assert.equal(text.compiledSummary(snapshot({ compiled: [row], engine })), `${held}. 1.0 GiB of weights lie on the disk`);
    engine.low_memory = { offloaded_bytes: 0, reason: "Weights stay in memory: the disk is full." };
    assert.equal(text.compiledSummary(snapshot({ compiled: [row], engine })), `${held}. Weights stay in memory: the disk is full.`);
});

test("the row of a job file has what is given, and a seed for each of several batches", () => {
    const row = (fields) => copy(text.jobRow(fields));
    assert.deepEqual(row({}), {});
    const fields = { prompt: "a cat, \"quoted\"", negative_prompt: " ", steps: "20", seed: "-1", sampler_name: "Euler a", precision: "auto" };
    assert.deepEqual(row(fields), { prompt: 'a cat, "quoted"', sampler_name: "Euler a", steps: 20, seed: -1 });
    assert.deepEqual(row({ checkpoint: "models/a [b].safetensors [6ce0161689]", precision: "f32" }), { checkpoint: "models/a [b].safetensors", precision: "f32" });
    assert.deepEqual(row({ seed: "7", batch_size: "2", batch_count: "3" }), { batch_size: 2, seed: [7, 9, 11] });
    assert.deepEqual(row({ batch_count: "2" }), { seed: [-1, -1] });
    assert.deepEqual(row({ from_picture: true, denoising_strength: "0.6" }), { init_image: "start.png", denoising_strength: 0.6 });
});
