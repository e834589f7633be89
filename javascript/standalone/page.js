"use strict";

// The standalone page: its keys, its title, pictures dropped onto it, and its slider after a comparison.
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

    // A picture that is dropped anywhere but where one to start from belongs gives the page its settings.
    function restore(event) {
        if (event.target.closest("#start") || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        event.stopPropagation();
        const [input, file] = [document.querySelector("#restore input[type=file]"), event.dataTransfer.files[0]];
        if (event.type !== "drop" || !input || !file) return;
        const given = new globalThis.DataTransfer();
        given.items.add(file);
        input.files = given.files;
        input.dispatchEvent(new Event("change", { bubbles: true }));
    }
    for (const type of ["dragover", "drop"]) document.addEventListener(type, restore, true);

    document.addEventListener("openvino-compared", () => document.querySelector("#compared")?.click());
})();
