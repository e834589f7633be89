"use strict";

// Shows the status in the panels of a page and handles their buttons. The WebUI loads scripts by their names, so this one
// after those it uses. Text from the server is set as text, never as HTML.
(function () {
    const ROOT = ".openvino-view";
    // How often a panel is checked for having become visible.
    const CHECK_MS = 300;

    // The panel around a live status, or the page: its parts stand in several places of it, some in an accordion that may be closed.
    const panelOf = (root) => root.closest(".openvino-page") || root.closest(".openvino-panel") || root;
    const part = (root, name) => panelOf(root).querySelector(`[data-openvino="${name}"]`);

    function setText(element, text) {
        if (element && element.textContent !== text) element.textContent = text;
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
        if (!box) return;
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
        if (!part(root, "networks")) return;
        part(root, "networks").hidden = rows.length === 0;
        setText(part(root, "networks-summary"), OpenVINOText.compiledSummary(snapshot));
        const headings = [...part(root, "networks").querySelectorAll("thead th")].map((heading) => heading.textContent);
        fill(part(root, "rows"), JSON.stringify(rows), () =>
            rows.map((row) => {
                const line = element("tr");
                OpenVINOText.cells(row).forEach((text, i) => {
                    const cell = element(i === 0 ? "th" : "td", text);
                    if (i === 0) cell.scope = "row";
                    else cell.dataset.heading = headings[i] ?? "";
                    line.append(cell);
                });
                return line;
            }),
        );
    }

    function renderList(root, name, lines) {
        const list = part(root, name);
        if (!list) return;
        list.hidden = lines.length === 0;
        fill(list, JSON.stringify(lines), () => lines.map((line) => element("li", line)));
    }

    function renderButtons(root, snapshot, busy) {
        const usesInt8 = Object.values(snapshot.networks).some(({ int8 }) => int8 && ["calibrating", "on"].includes(int8.state));
        for (const button of panelOf(root).querySelectorAll("button[data-openvino-action]")) {
            const interrupts = button.dataset.openvinoAction === "interrupt";
            if (button.dataset.openvinoAction === "job") continue;
            button.disabled = interrupts ? snapshot.state === "idle" : busy;
            if (interrupts) button.hidden = button.disabled;
            if (button.dataset.openvinoAction === "compare-int8") button.hidden = !usesInt8;
        }
    }

    const tabOf = (root) => root.id.replace(/^openvino_|_view$/g, "");

    // Propose what the WebUI's own fields ask for, until somebody writes another size or batch size.
    function renderProposal(root) {
        const tab = tabOf(root);
        const field = (name) => document.querySelector(`#${tab}_${name} input[type=number]`)?.value;
        const propose = (name, value) => {
            const input = part(root, name);
            if (value && input && input.value === (input.dataset.openvinoProposed ?? input.defaultValue)) {
                input.value = input.dataset.openvinoProposed = value;
            }
        };
        const [width, height] = [field("width"), field("height")];
        propose("sizes", width && height && `${width}x${height}`);
        propose("batch", field("batch_size"));
    }

    // Both pictures of a comparison that has just ended. They are fetched, because an <img> sends no token.
    function renderComparison(root, { job }) {
        const box = part(root, "comparison");
        const done = Boolean(job) && job.kind === "compare" && job.state === "done" && Boolean(job.result.pictures);
        const key = done ? String(job.number) : "";
        if (box) box.hidden = !done;
        if (root.dataset.openvinoCompared === key) return;
        root.dataset.openvinoCompared = key;
        document.dispatchEvent(new CustomEvent("openvino-compared", { detail: done }));
        if (!box) return;
        for (const old of box.querySelectorAll("img")) URL.revokeObjectURL(old.src);
        if (done) showPictures(box, job.result).catch((error) => showNotice("alert", error.message));
        else box.replaceChildren();
    }

    async function showPictures(box, result) {
        const figures = [];
        for (const [name, label] of OpenVINOText.sides(result)) {
            const response = await send(`compare/${name}`);
            const figure = element("figure");
            const picture = element("img");
            picture.src = URL.createObjectURL(await response.blob());
            picture.alt = `The picture by ${label}`;
            figure.append(picture, element("figcaption", `${label}, ${OpenVINOText.seconds(result[`${name}_picture_seconds`])}`));
            figures.push(figure);
        }
        box.replaceChildren(...figures);
    }

    // The buttons that end what runs, in the panel and in both hosts; that one was pressed is said until it is over.
    const INTERRUPTS = "#interrupt, #txt2img_interrupt, #img2img_interrupt, [data-openvino-action=interrupt]";
    const INTERRUPTING = "Interrupting";
    let interrupting = false;

    // Whether something runs that was asked to end; a page that waits for another one's end has no button any more.
    function isInterruptible({ run, job }) {
        const runs = Boolean(run && run.active) || Boolean(job && job.state === "running");
        return runs && !document.querySelector("#interrupt:disabled");
    }

    // What every WebUI has, and what a tab of one has while its own generation runs.
    const [WEBUI, OWN_PROGRESS] = ["#txt2img_generate", ".progressDiv"];
    const OTHERS = "Another page or the API: ";
    // The last generation that was seen, and whether this tab had begun it.
    let seen = { number: 0, own: true };

    // What stands before the headline of a generation, and of how it ended.
    function owner({ run, job }) {
        if (!run || job || !document.querySelector(WEBUI)) return "";
        if (run.active && run.number !== seen.number) seen = { number: run.number, own: document.querySelector(OWN_PROGRESS) !== null };
        return seen.own || run.number !== seen.number ? "" : OTHERS;
    }

    function interrupt() {
        interrupting = true;
        for (const root of roots()) for (const name of ["headline", "spoken"]) setText(part(root, name), INTERRUPTING);
    }

    function render(root, status) {
        const { cfg_scale: scale, batch_size: batch } = jobFields(root);
        const page = { choices: choices(root), batch: Number(batch ?? 1), guided: Number(scale ?? 7) > 1 };
        const snapshot = OpenVINOText.onPage(status, page);
        root.dataset.openvinoState = snapshot.state;
        root.dataset.openvinoOutcome = OpenVINOText.outcome(snapshot);
        interrupting &&= isInterruptible(snapshot);
        for (const name of ["headline", "spoken"]) {
            setText(part(root, name), interrupting ? INTERRUPTING : `${owner(snapshot)}${OpenVINOText[name](snapshot)}`);
        }
        setText(part(root, "timing"), OpenVINOText.timing(snapshot));
        setText(part(root, "result"), OpenVINOText.jobResult(snapshot.job));
        setText(part(root, "cache"), cacheSummary);
        renderProgress(root, snapshot);
        renderShares(root, snapshot);
        renderTable(root, snapshot);
        renderList(root, "coverage", OpenVINOText.coverage(snapshot));
        renderList(root, "fallbacks", OpenVINOText.notes(snapshot));
        renderButtons(root, snapshot, status.state !== "idle");
        renderProposal(root);
        renderComparison(root, snapshot);
    }

    const isPage = () => Boolean(document.querySelector(".openvino-page"));
    const roots = () => [...document.querySelectorAll(ROOT)];
    const shown = (root) => root.getClientRects().length > 0;

    // A message as an "alert", which is a problem, or as a "notice"; it replaces both.
    function showNotice(kind, message) {
        for (const root of roots()) {
            for (const name of ["alert", "notice"]) setText(part(root, name), name === kind ? message : "");
        }
    }

    async function send(path, options = {}) {
        const root = document.querySelector(ROOT);
        const own = { "X-OpenVINO-Token": root ? root.dataset.openvinoToken : "", "X-OpenVINO-Page": globalThis.OpenVINOPage?.key() ?? "" };
        const headers = { ...own, ...options.headers };
        const response = await fetch(`./openvino/${path}`, { cache: "no-store", ...options, headers });
        if (response.ok) return response;
        const answer = await response.json().catch(() => ({}));
        throw new Error(answer.error || `The server answered ${response.status}.`);
    }

    const request = async (path, options) => (await send(path, options)).json();

    const post = (path, body) =>
        request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

    // Kept, because the accordion that shows it may be opened later.
    let cacheSummary = "";

    async function showCache() {
        cacheSummary = OpenVINOText.cacheSummary(await request("cache"));
        for (const root of roots()) setText(part(root, "cache"), cacheSummary);
    }

    const control = (root, field) => document.getElementById(root.id.replace(/view$/, field));

    // The values that the controls of a panel show now, by field.
    function choices(root) {
        const input = (field) => control(root, field)?.querySelector("input, textarea");
        const inputs = JSON.parse(root.dataset.openvinoFields).map((field) => [field, input(field)]);
        const value = (input) =>
            input.type === "checkbox" ? input.checked : input.type === "number" ? Number(input.value) : input.value;
        return Object.fromEntries(inputs.filter(([, input]) => input).map(([field, input]) => [field, value(input)]));
    }

    // Where the fields of a job file's row are: in a tab of the WebUI, and in the standalone page.
    const JOB_FIELDS = {
        prompt: ["TAB_prompt", "prompt"], negative_prompt: ["TAB_neg_prompt", "negative_prompt"],
        sampler_name: ["TAB_sampling", "sampler"], scheduler: ["TAB_scheduler"], steps: ["TAB_steps", "steps"],
        width: ["TAB_width", "width"], height: ["TAB_height", "height"], cfg_scale: ["TAB_cfg_scale", "guidance"],
        batch_size: ["TAB_batch_size", "batch"], batch_count: ["TAB_batch_count", "batch_count"], seed: ["TAB_seed", "seed"],
        checkpoint: ["setting_sd_model_checkpoint"], denoising_strength: ["TAB_denoising_strength", "strength"],
    };

    // What a job file has to ask for, as the texts of the page's fields.
    function jobFields(root) {
        const tab = tabOf(root);
        const text = (ids) => {
            const box = ids.map((id) => document.getElementById(id.replace("TAB", tab))).find(Boolean);
            const field = box?.querySelector("input[type=radio]:checked") || box?.querySelector("input[type=number]");
            return (field || box?.querySelector("textarea, input"))?.value;
        };
        const fields = Object.fromEntries(Object.entries(JOB_FIELDS).map(([name, ids]) => [name, text(ids)]));
        const fromPicture = tab === "img2img" || Boolean(document.querySelector("#started input:checked"));
        return { ...fields, precision: choices(root).precision, from_picture: fromPicture };
    }

    // The size that the visible tab asks for, or null while that is no size.
    function pageSize() {
        const box = (each) => document.getElementById(`${tabOf(each)}_width`) || document.getElementById("width");
        const root = roots().find((each) => box(each) && shown(box(each)));
        const fields = root && jobFields(root);
        const [width, height, batch] = fields ? [fields.width, fields.height, fields.batch_size].map(Number) : [];
        if (!OpenVINOText.isSize(width, height, batch)) return null;
        return { size: [width, height], batch, from_picture: fields.from_picture };
    }

    function saveJob(root) {
        const row = OpenVINOText.jobRow(jobFields(root));
        const link = element("a");
        link.href = URL.createObjectURL(new globalThis.Blob([`${JSON.stringify(row)}\n`], { type: "application/jsonl" }));
        link.download = "job.jsonl";
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60000);
        const advice = row.init_image ? " Write the path of your picture into init_image." : "";
        showNotice("notice", `job.jsonl asks for what the page shows; ov-backend batch makes its pictures.${advice}`);
    }

    const ACTIONS = {
        job: saveJob,
        async precompile(root) {
            const { sizes, error } = OpenVINOText.parseSizes(part(root, "sizes").value);
            if (error) throw new Error(error);
            await post("precompile", { sizes, batch: Number(part(root, "batch").value), choices: choices(root) });
        },
        compare: (root) => post("compare", { choices: choices(root) }),
        "compare-int8": (root) => post("compare-int8", { choices: choices(root) }),
        interrupt: () => post("interrupt", {}),
        async clear() {
            const info = await request("cache");
            if (!globalThis.confirm(`Remove the prepared graphs? ${OpenVINOText.cacheSummary(info)}. They are prepared again when needed.`)) return;
            const { removed } = await request("cache", { method: "DELETE" });
            showNotice("notice", removed === 1 ? "1 graph removed." : `${removed} graphs removed.`);
        },
    };

    function start() {
        let state = "";
        const poller = new OpenVINOPoller({
            request: (signal) => request("status", { signal }),
            // a hidden page goes on to look until what it has begun is over, for its title
            isVisible: () => (!document.hidden || (isPage() && !["", "idle", "lost"].includes(state))) && roots().some(shown),
            show(snapshot) {
                if (snapshot.state === "idle" && state !== "idle") showCache().catch((error) => showNotice("alert", error.message));
                if (state === "lost") showNotice("alert", "");
                state = snapshot.state;
                for (const root of roots().filter(shown)) render(root, snapshot);
                document.dispatchEvent(new CustomEvent("openvino-status", { detail: snapshot }));
            },
            fail(error) {
                state = "lost";
                // fetch has no other sign that nobody answers
                const isGone = error instanceof TypeError || error.name === "AbortError";
                const sentence = "The server has ended, or cannot be reached. Start it again; this page then goes on.";
                showNotice("alert", isGone ? sentence : `The status cannot be read: ${error.message}`);
            },
        });

        document.addEventListener("click", ({ target }) => {
            if (target instanceof Element && target.closest(INTERRUPTS)) interrupt();
            poller.clicked();
        });
        document.addEventListener("click", async (event) => {
            const button = event.target instanceof Element ? event.target.closest("button[data-openvino-action]") : null;
            if (!button || button.disabled) return;
            showNotice("alert", "");
            try {
                await ACTIONS[button.dataset.openvinoAction](panelOf(button).querySelector(ROOT) || button.closest(ROOT));
            } catch (error) {
                showNotice("alert", error.message);
            }
            state = "";
            poller.pollNow();
        });
        document.addEventListener("visibilitychange", () => poller.wake());
        const sizes = new OpenVINOSizes({ read: pageSize, send: (size) => post("ready", size) });
        setInterval(() => {
            poller.wake();
            if (!document.hidden) sizes.look();
        }, CHECK_MS);
        poller.wake();
    }

    globalThis.OpenVINOPanel = { render, request, start };
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
    else start();
})();
