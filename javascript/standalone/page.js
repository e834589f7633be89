"use strict";

// The standalone page's keys, and its slider after a comparison.
(function () {
    const PROMPTS = "#prompt, #negative_prompt";

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

    document.addEventListener("openvino-compared", () => document.querySelector("#compared")?.click());
})();
