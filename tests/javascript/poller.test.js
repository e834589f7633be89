"use strict";

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { page, snapshot, Timers } = require("./helper.js");

const Poller = page().OpenVINOPoller;

function open(answers, visible = true) {
    const timers = new Timers();
    const log = { requests: 0, shown: [], failed: [], visible, timers };
    const poller = new Poller({
        request: async () => {
            log.requests += 1;
            const answer = answers.length > 1 ? answers.shift() : answers[0];
            if (answer instanceof Error) throw answer;
            return answer;
        },
        isVisible: () => log.visible,
        show: (snapshot) => log.shown.push(snapshot.state),
        fail: (error) => log.failed.push(error.message),
        timers,
    });
    const wake = async () => {
        poller.wake();
        await poller.pending;
    };
    return { poller, log, wake, next: async () => { timers.fire(); await poller.pending; } };
}

test("a hidden panel is not polled", async () => {
    const { log, wake } = open([snapshot()], false);
    await wake();
    assert.equal(log.requests, 0);
    assert.equal(log.timers.pending.size, 0);
});

test("a visible panel is polled, faster while something runs", async () => {
    const { log, wake, next } = open([snapshot(), snapshot({ state: "preparing" }), snapshot()]);
    await wake();
    const [idle] = log.timers.delays();
    await next();
    const [busy] = log.timers.delays();
    await next();
    assert.deepEqual(log.shown, ["idle", "preparing", "idle"]);
    assert.ok(busy < idle && idle < 1000, `a stage must be seen within a second: ${busy} ms, ${idle} ms`);
});

test("polling stops while the tab is hidden, and waking starts it again", async () => {
    const { log, wake, next } = open([snapshot({ state: "running" })]);
    await wake();
    log.visible = false;
    await next();
    assert.equal(log.requests, 1);
    assert.equal(log.timers.pending.size, 0);
    log.visible = true;
    await wake();
    assert.equal(log.requests, 2);
});

test("waking sends neither two requests at a time nor one before its time", async () => {
    const { poller, log, wake } = open([snapshot()]);
    poller.wake();
    poller.wake();
    await poller.pending;
    await wake();
    assert.equal(log.requests, 1);
});

test("pollNow does not wait for the timer", async () => {
    const { poller, log, wake } = open([snapshot()]);
    await wake();
    poller.pollNow();
    await poller.pending;
    assert.equal(log.requests, 2);
    assert.equal(log.timers.pending.size, 1);
});

test("a server that fails is polled ever less often, until it answers again", async () => {
    const { log, wake, next } = open([new Error("gone"), new Error("gone"), new Error("gone"), snapshot()]);
    await wake();
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

test("the wait after failures is bounded", async () => {
    const { poller } = open([snapshot()]);
    poller.failures = 50;
    assert.equal(poller.delay(), 30000);
});

test("after a click it polls more often for a while", async () => {
    const { poller, log } = open([snapshot()]);
    const idle = poller.delay();
    poller.clicked();
    await poller.pending;
    assert.equal(log.requests, 1);
    assert.ok(poller.delay() < idle);
    log.timers.now += 3001;
    assert.equal(poller.delay(), idle);
});
