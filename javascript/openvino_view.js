"use strict";

// Shows the status in the panels of a page and handles their buttons. The WebUI loads scripts by their names, so this one
// after those it uses. Text from the server is set as text, never as HTML.
(function () {
    const ROOT = ".openvino-view";
    // How often a panel is checked for having become visible.
    const CHECK_MS = 300;

    const part = (root, name) => root.querySelector(`[data-openvino="${name}"]`);

    function setText(element, text) {
        if (element.textContent !== text) element.textContent = text;
    }

    function element(tag, text, className) {
        const created = document.createElement(tag);
        if (text) created.textContent = text;
        if (className) created.className = className;
        return created;
    }

    // Replace the children only when the key changes, so that a screen reader keeps its place and a selection stays.
    function fill(parent, key, createChildren) {
        if (parent.dataset.openvinoKey === key) return;
        parent.dataset.openvinoKey = key;
        parent.replaceChildren(...createChildren());
    }

    function renderProgress(root, snapshot) {
        const bar = part(root, "progress");
        const value = OpenVINOText.progress(snapshot);
        bar.hidden = snapshot.state === "idle";
        if (value === null) bar.removeAttribute("value");
        else bar.value = value;
    }

    function renderShares(root, snapshot) {
        const shares = OpenVINOText.shares(snapshot);
        const box = part(root, "shares");
        box.hidden = shares.length === 0;
        fill(box, JSON.stringify(shares), () => {
            const bar = element("div", "", "openvino-share-bar");
            bar.setAttribute("aria-hidden", "true");
            const list = element("ul", "", "openvino-share-list");
            for (const { name, share, text } of shares) {
                const piece = element("span", "", "openvino-share");
                piece.style.flexGrow = String(share);
                piece.dataset.network = name;
                bar.append(piece);
                const item = element("li", text);
                item.dataset.network = name;
                list.append(item);
            }
            return [bar, list];
        });
    }

    function renderTable(root, snapshot) {
        const rows = snapshot.compiled;
        part(root, "networks").hidden = rows.length === 0;
        setText(part(root, "networks-summary"), OpenVINOText.compiledSummary(snapshot));
        fill(part(root, "rows"), JSON.stringify(rows), () =>
            rows.map((row) => {
                const line = element("tr");
                OpenVINOText.cells(row).forEach((text, i) => {
                    const cell = element(i === 0 ? "th" : "td", text);
                    if (i === 0) cell.scope = "row";
                    line.append(cell);
                });
                return line;
            }),
        );
    }

    function renderList(root, name, lines) {
        const list = part(root, name);
        list.hidden = lines.length === 0;
        fill(list, JSON.stringify(lines), () => lines.map((line) => element("li", line)));
    }

    function renderButtons(root, snapshot) {
        const busy = snapshot.state !== "idle";
        for (const button of root.querySelectorAll("button[data-openvino-action]")) {
            button.disabled = button.dataset.openvinoAction === "interrupt" ? !busy : busy;
        }
    }

    function render(root, snapshot) {
        root.dataset.openvinoState = snapshot.state;
        setTooltips(root);
        setText(part(root, "headline"), OpenVINOText.headline(snapshot));
        setText(part(root, "spoken"), OpenVINOText.spoken(snapshot));
        setText(part(root, "timing"), OpenVINOText.timing(snapshot));
        setText(part(root, "result"), OpenVINOText.jobResult(snapshot.job));
        renderProgress(root, snapshot);
        renderShares(root, snapshot);
        renderTable(root, snapshot);
        renderList(root, "coverage", OpenVINOText.coverage(snapshot));
        renderList(root, "fallbacks", [...OpenVINOText.fallbacks(snapshot), ...snapshot.messages]);
        renderButtons(root, snapshot);
    }

    const roots = () => [...document.querySelectorAll(ROOT)];
    const shown = (root) => root.getClientRects().length > 0;

    function showAlert(message) {
        for (const root of roots()) setText(part(root, "alert"), message);
    }

    async function request(path, options = {}) {
        const root = document.querySelector(ROOT);
        const headers = { "X-OpenVINO-Token": root ? root.dataset.openvinoToken : "", ...options.headers };
        const response = await fetch(`./openvino/${path}`, { cache: "no-store", ...options, headers });
        const answer = await response.json().catch(() => ({}));
        if (!response.ok) throw new Error(answer.error || `The server answered ${response.status}.`);
        return answer;
    }

    const post = (path, body) =>
        request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

    async function showCache() {
        const info = await request("cache");
        for (const root of roots()) setText(part(root, "cache"), OpenVINOText.cacheSummary(info));
    }

    const control = (root, field) => document.getElementById(root.id.replace(/view$/, field));
    const tips = (root) => Object.entries(JSON.parse(root.dataset.openvinoTips));

    // Gradio's controls have no tooltips, and lose ours when Gradio draws a control again.
    function setTooltips(root) {
        for (const [field, tip] of tips(root)) {
            const widget = control(root, field);
            if (widget && widget.title !== tip) widget.title = tip;
        }
    }

    // The values that the controls of a panel show now, by field.
    function choices(root) {
        const input = (field) => control(root, field)?.querySelector("input, textarea");
        const inputs = tips(root).map(([field]) => [field, input(field)]);
        const value = (input) =>
            input.type === "checkbox" ? input.checked : input.type === "number" ? Number(input.value) : input.value;
        return Object.fromEntries(inputs.filter(([, input]) => input).map(([field, input]) => [field, value(input)]));
    }

    const ACTIONS = {
        async precompile(root) {
            const { sizes, error } = OpenVINOText.parseSizes(part(root, "sizes").value);
            if (error) throw new Error(error);
            await post("precompile", { sizes, batch: Number(part(root, "batch").value), choices: choices(root) });
        },
        compare: (root) => post("compare", { choices: choices(root) }),
        interrupt: () => post("interrupt", {}),
        async clear() {
            const info = await request("cache");
            if (!globalThis.confirm(`Remove the prepared graphs? ${OpenVINOText.cacheSummary(info)}. They are prepared again when needed.`)) return;
            const { removed } = await request("cache", { method: "DELETE" });
            showAlert(removed === 1 ? "1 graph removed." : `${removed} graphs removed.`);
        },
    };

    function start() {
        let state = "";
        const poller = new OpenVINOPoller({
            request: (signal) => request("status", { signal }),
            isVisible: () => !document.hidden && roots().some(shown),
            show(snapshot) {
                if (snapshot.state === "idle" && state !== "idle") showCache().catch((error) => showAlert(error.message));
                if (state === "lost") showAlert("");
                state = snapshot.state;
                for (const root of roots().filter(shown)) render(root, snapshot);
            },
            fail(error) {
                state = "lost";
                showAlert(`The status cannot be read: ${error.message}`);
            },
        });

        document.addEventListener("click", () => poller.clicked());
        document.addEventListener("click", async (event) => {
            const button = event.target instanceof Element ? event.target.closest("button[data-openvino-action]") : null;
            if (!button || button.disabled) return;
            showAlert("");
            try {
                await ACTIONS[button.dataset.openvinoAction](button.closest(ROOT));
            } catch (error) {
                showAlert(error.message);
            }
            state = "";
            poller.pollNow();
        });
        document.addEventListener("visibilitychange", () => poller.wake());
        setInterval(() => poller.wake(), CHECK_MS);
        poller.wake();
    }

    globalThis.OpenVINOPanel = { render, request, start };
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
    else start();
})();
