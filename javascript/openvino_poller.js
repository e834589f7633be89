"use strict";

// Polls the status while the panel is visible, and only then.
(function () {
    const BUSY_MS = 300;
    const IDLE_MS = 700;
    // After a click something may begin at any moment; for this long the status is polled as if something ran.
    const AFTER_CLICK_MS = 3000;
    const LONGEST_MS = 30000;
    // A request is aborted after this time: a server that is gone may never answer.
    const TIMEOUT_MS = 20000;

    class Poller {
        // request(signal): promise of a snapshot; isVisible(): whether to poll at all; show(snapshot); fail(error).
        constructor({ request, isVisible, show, fail, timers = globalThis }) {
            Object.assign(this, { request, isVisible, show, fail, timers });
            this.timer = null;
            this.requesting = false;
            this.failures = 0;
            this.busy = false;
            this.clickedAt = -Infinity;
        }

        // Start polling if the panel is visible, unless a request or a timer is pending.
        wake() {
            if (this.requesting || this.timer !== null || !this.isVisible()) return;
            this.pending = this.#poll();
        }

        // Something was clicked: poll now, and for a while as often as when something runs.
        clicked() {
            this.clickedAt = this.timers.performance.now();
            this.pollNow();
        }

        // Poll without waiting for the timer: the effect of an action should be seen at once.
        pollNow() {
            this.#cancel();
            this.wake();
        }

        #cancel() {
            if (this.timer !== null) this.timers.clearTimeout(this.timer);
            this.timer = null;
        }

        async #poll() {
            this.requesting = true;
            const abort = new AbortController();
            const timeout = this.timers.setTimeout(() => abort.abort(), TIMEOUT_MS);
            try {
                const snapshot = await this.request(abort.signal);
                this.failures = 0;
                this.busy = snapshot.state !== "idle";
                this.show(snapshot);
            } catch (error) {
                this.failures += 1;
                this.fail(error);
            } finally {
                this.timers.clearTimeout(timeout);
                this.requesting = false;
            }
            if (!this.isVisible()) return;
            this.timer = this.timers.setTimeout(() => {
                this.timer = null;
                this.wake();
            }, this.delay());
        }

        // Milliseconds to the next request; twice as long after each failure.
        delay() {
            if (this.failures > 0) return Math.min(LONGEST_MS, IDLE_MS * 2 ** this.failures);
            const justClicked = this.timers.performance.now() - this.clickedAt < AFTER_CLICK_MS;
            return this.busy || justClicked ? BUSY_MS : IDLE_MS;
        }
    }

    globalThis.OpenVINOPoller = Poller;
})();
