"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { page, snapshot, Timers } = require("./helper.js");

const Poller = page().OpenVINOPoller;

function poller(answers, seen = true) {
    const timers = new Timers();
    const log = { asked: 0, shown: [], failed: [], seen, timers };
    const made = new Poller({
        ask: async () => {
            log.asked += 1;
            const answer = answers.length > 1 ? answers.shift() : answers[0];
            if (answer instanceof Error) throw answer;
            return answer;
        },
        wanted: () => log.seen,
        show: (found) => log.shown.push(found.state),
        fail: (error) => log.failed.push(error.message),
        timers,
    });
    const poke = async () => {
        made.poke();
        await made.asked;
    };
    return { made, log, poke, next: async () => { timers.fire(); await made.asked; } };
}

test("nobody looks: nothing is asked", async () => {
    const { log, poke } = poller([snapshot()], false);
    await poke();
    assert.equal(log.asked, 0);
    assert.equal(log.timers.pending.size, 0);
});

test("somebody looks: it goes on asking, faster while something runs", async () => {
    const { log, poke, next } = poller([snapshot(), snapshot({ state: "preparing" }), snapshot()]);
    await poke();
    const [idle] = log.timers.delays();
    await next();
    const [busy] = log.timers.delays();
    await next();
    assert.deepEqual(log.shown, ["idle", "preparing", "idle"]);
    assert.ok(busy < idle && idle < 1000, `a stage must be seen within a second: ${busy} ms, ${idle} ms`);
});

test("the tab is hidden in between: it stops, and a poke starts it again", async () => {
    const { log, poke, next } = poller([snapshot({ state: "running" })]);
    await poke();
    log.seen = false;
    await next();
    assert.equal(log.asked, 1);
    assert.equal(log.timers.pending.size, 0);
    log.seen = true;
    await poke();
    assert.equal(log.asked, 2);
});

test("poking does not ask twice at a time, nor before its time", async () => {
    const { made, log, poke } = poller([snapshot()]);
    made.poke();
    made.poke();
    await made.asked;
    await poke();
    assert.equal(log.asked, 1);
});

test("hurry asks before its time", async () => {
    const { made, log, poke } = poller([snapshot()]);
    await poke();
    made.hurry();
    await made.asked;
    assert.equal(log.asked, 2);
    assert.equal(log.timers.pending.size, 1);
});

test("a server that does not answer is asked ever less often, and found again", async () => {
    const { log, poke, next } = poller([new Error("gone"), new Error("gone"), new Error("gone"), snapshot()]);
    await poke();
    const delays = [];
    for (let i = 0; i < 3; i += 1) {
        delays.push(log.timers.delays()[0]);
        await next();
    }
    assert.ok(delays[0] < delays[1] && delays[1] < delays[2], String(delays));
    assert.deepEqual(log.failed, ["gone", "gone", "gone"]);
    assert.deepEqual(log.shown, ["idle"]);
    assert.ok(log.timers.delays()[0] < 1000);
});

test("the wait after failures has an end", async () => {
    const { made } = poller([snapshot()]);
    made.failures = 50;
    assert.equal(made.delay(), 30000);
});

test("after a click it looks more often for a while", async () => {
    const { made, log } = poller([snapshot()]);
    const idle = made.delay();
    made.stir();
    await made.asked;
    assert.equal(log.asked, 1);
    assert.ok(made.delay() < idle);
    log.timers.now += 3001;
    assert.equal(made.delay(), idle);
});
