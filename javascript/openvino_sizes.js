"use strict";

// Tells the server which size the page shows, once its fields have not changed for a while.
(function () {
    const SETTLED_MS = 1000;

    class Sizes {
        // read(): what the page shows, or null where that is no size; send(value): promise; a refusal is nobody's news.
        constructor({ read, send, timers = globalThis }) {
            Object.assign(this, { read, send, timers });
            this.seen = this.sent = null;
            this.since = 0;
        }

        // Look at the fields, a few times a second: buttons and other scripts change them too, without an event.
        look() {
            const value = this.read();
            const seen = value && JSON.stringify(value);
            const now = this.timers.performance.now();
            if (seen !== this.seen) {
                this.seen = seen;
                this.since = now;
            }
            if (seen === null || seen === this.sent || now - this.since < SETTLED_MS) return;
            const first = this.sent === null; // what a page shows when it is opened was not chosen
            this.sent = seen;
            if (!first) this.send(value).catch(() => {});
        }
    }

    globalThis.OpenVINOSizes = Sizes;
})();
