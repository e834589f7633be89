"use strict";

// Asks for the status while somebody looks, and only then.
(function () {
    const BUSY_MS = 300;
    const IDLE_MS = 700;
    // After a click something may begin at any moment.
    const STIRRED_MS = 3000;
    const LONGEST_MS = 30000;
    // An answer that takes longer than this is given up: the server may be gone without saying so.
    const GIVE_UP_MS = 20000;

    class Poller {
        // ask(signal): promise of a snapshot; wanted(): whether anybody looks; show(snapshot); fail(error).
        constructor({ ask, wanted, show, fail, timers = globalThis }) {
            Object.assign(this, { ask, wanted, show, fail, timers });
            this.timer = null;
            this.asking = false;
            this.failures = 0;
            this.busy = false;
            this.stirred = -Infinity;
        }

        // Somebody may be looking now: ask at once, unless asking already or waiting for a turn.
        poke() {
            if (this.asking || this.timer !== null || !this.wanted()) return;
            this.asked = this.#round();
        }

        // Something was clicked: for a while, look as often as when something runs.
        stir() {
            this.stirred = this.timers.performance.now();
            this.hurry();
        }

        // Ask now even if it is not time yet: something was done whose effect should be seen.
        hurry() {
            this.#cancel();
            this.poke();
        }

        #cancel() {
            if (this.timer !== null) this.timers.clearTimeout(this.timer);
            this.timer = null;
        }

        async #round() {
            this.asking = true;
            const giveUp = new AbortController();
            const limit = this.timers.setTimeout(() => giveUp.abort(), GIVE_UP_MS);
            try {
                const snapshot = await this.ask(giveUp.signal);
                this.failures = 0;
                this.busy = snapshot.state !== "idle";
                this.show(snapshot);
            } catch (error) {
                this.failures += 1;
                this.fail(error);
            } finally {
                this.timers.clearTimeout(limit);
                this.asking = false;
            }
            if (!this.wanted()) return;
            this.timer = this.timers.setTimeout(() => {
                this.timer = null;
                this.poke();
            }, this.delay());
        }

        // Milliseconds to the next question; twice as long after each failure.
        delay() {
            if (this.failures > 0) return Math.min(LONGEST_MS, IDLE_MS * 2 ** this.failures);
            const stirred = this.timers.performance.now() - this.stirred < STIRRED_MS;
            return this.busy || stirred ? BUSY_MS : IDLE_MS;
        }
    }

    globalThis.OpenVINOPoller = Poller;
})();
