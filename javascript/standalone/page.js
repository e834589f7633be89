"use strict";

// The standalone page: its keys, its title, and its slider after a comparison.
(function () {
    const PROMPTS = "#prompt, #negative_prompt";

    // By this the server knows which pictures are this page's, also after a reload; it has to be hard to guess.
    function key() {
        const drawn = () => Array.from(globalThis.crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("");
        return (globalThis.sessionStorage.openvinoPage ??= drawn());
    }
    globalThis.OpenVINOPage = { key };

    document.addEventListener(
        "keydown",
        (event) => {
            const inPrompt = event.target instanceof Element && event.target.closest(PROMPTS);
            if (!inPrompt || event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
            event.preventDefault();
            const input = event.target;
            input.dispatchEvent(new Event("input", { bubbles: true })); // Gradio learns of the last letters
            const button = document.querySelector("#generate");
            setTimeout(() => { if (button && !button.disabled) button.click(); }, 0);
        },
        true,
    );

    // The window's title says how far the page's own picture is, and that it is done to somebody who looks at another page.
    const heading = () => document.querySelector("h1")?.textContent ?? "";
    let waited = false;
    document.addEventListener("openvino-status", ({ detail: snapshot }) => {
        const isOver = snapshot.state === "idle";
        const waits = Boolean(document.querySelector("#generate:disabled")) && !isOver;
        const news = waits ? OpenVINOText.brief(snapshot) : waited && isOver && document.hidden ? "Done" : "";
        waited = (waited || waits) && !(isOver && !document.hidden);
        document.title = news ? `${news} · ${heading()}` : heading();
    });

    document.addEventListener("openvino-compared", () => document.querySelector("#compared")?.click());
})();
