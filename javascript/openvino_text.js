"use strict";

// The panel's texts from a status snapshot, without access to the page or the network.
(function () {
    // How the server says that the user has ended something.
    const INTERRUPTED = "Interrupted.";
    const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

    function bytes(count) {
        let value = Math.max(0, Number(count) || 0);
        let unit = 0;
        while (value >= 1024 && unit < BYTE_UNITS.length - 1) {
            value /= 1024;
            unit += 1;
        }
        return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${BYTE_UNITS[unit]}`;
    }

    function seconds(value) {
        if (value === null || value === undefined || !Number.isFinite(value)) return "";
        if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
        return value < 60 ? `${value.toFixed(1)} s` : `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
    }

    // Shares of 1 as whole percents that sum to 100: the largest remainders are rounded up.
    function percents(shares) {
        const exact = shares.map((share) => 100 * share);
        const whole = exact.map(Math.floor);
        const missing = Math.round(exact.reduce((a, b) => a + b, 0)) - whole.reduce((a, b) => a + b, 0);
        const byRemainder = exact.map((value, i) => i).sort((i, j) => exact[j] - whole[j] - (exact[i] - whole[i]));
        for (const i of byRemainder.slice(0, missing)) whole[i] += 1;
        return whole;
    }

    // A network's name at the beginning of a line.
    const titled = (label) => label.charAt(0).toUpperCase() + label.slice(1);

    const isRunning = (job) => Boolean(job) && job.state === "running";

    // What is running now, or how the last generation or job ended; a job that is over is newer than the last generation.
    function headline(snapshot) {
        const { stage, run, job } = snapshot;
        if (stage) return stage.label;
        if (run && run.active) return run.step > 0 ? `${run.what}, step ${run.step} of ${run.steps}` : run.what;
        if (isRunning(job)) return job.text || "Working";
        if (job) return jobHeadline(job);
        if (run && run.error === INTERRUPTED) return `Interrupted after ${seconds(run.seconds)}`;
        if (run && run.error) return `Ended: ${run.error}`;
        return run ? `Done in ${seconds(run.seconds)}` : "Nothing is running";
    }

    function jobHeadline(job) {
        if (job.state !== "done") return job.text === INTERRUPTED ? "Interrupted" : `Ended: ${job.text}`;
        return job.kind === "compare" ? verdict(job.result) : `Ready for ${job.result.sizes.join(", ")}${conditions(job.result)}`;
    }

    // What else "Ready" depends on, where it is not what the page shows.
    function conditions({ batch = 1, guided = true, page = {} }) {
        const parts = [];
        if (batch !== (page.batch ?? 1)) parts.push(`batch size ${batch}`);
        if (guided !== (page.guided ?? true)) parts.push(guided ? "CFG scale above 1" : "CFG scale 1");
        return parts.map((part) => `, ${part}`).join("");
    }

    const SWITCHES = ["unet", "vae", "text_encoder"];
    // OpenVINO's properties in one spelling; the server writes their names in order.
    const properties = (text) => String(text ?? "").replace(/\s/g, "").replace(/^\{\}$/, "");
    const deviceName = (text) => String(text ?? "").split(" — ")[0].trim();

    // Whether what was prepared serves what the page's controls show now: device, precision, and every network that is on.
    function isStillReady(prepared, choices) {
        const differs = (name, read = String) => choices[name] !== undefined && read(choices[name]) !== read(prepared[name]);
        const isMissing = (name) => choices[name] && !prepared[name];
        return !(differs("device", deviceName) || differs("precision") || differs("config_json", properties) || SWITCHES.some(isMissing));
    }

    // The snapshot for a page that shows {choices, batch, guided}: what was prepared for other choices is no news there, nor is
    // what is still prepared for a generation that was interrupted.
    function onPage(status, page) {
        const snapshot = status.stage?.left_over ? { ...status, stage: null, state: "idle" } : status;
        const { job } = snapshot;
        if (!job || job.kind !== "precompile" || job.state !== "done") return snapshot;
        const { choices } = job.result;
        if (choices && !isStillReady(choices, page.choices)) return { ...snapshot, job: null };
        return { ...snapshot, job: { ...job, result: { ...job.result, page } } };
    }

    // How the last thing ended: "success", "interrupted", "failure", or "" while something runs or before anything did.
    function outcome(snapshot) {
        const { state, run, job } = snapshot;
        if (state !== "idle" || !(job || run)) return "";
        const error = job ? (job.state === "done" ? "" : job.text) : run.error;
        if (error === INTERRUPTED) return "interrupted";
        return error || (job && job.kind === "compare" && isUnlike(job.result)) ? "failure" : "success";
    }

    // The headline for screen readers: it changes with the stage, not with every step.
    function spoken(snapshot) {
        const { stage, run } = snapshot;
        return !stage && run && run.active ? run.what : headline(snapshot);
    }

    // The share that is done, 0 to 1, or null where the end is unknown.
    function progress(snapshot) {
        const { stage, run, job } = snapshot;
        if (stage) return stage.stages > 0 && stage.number > 0 ? (stage.number - 0.5) / stage.stages : null;
        if (run && run.active) return run.steps > 0 ? Math.min(1, run.step / run.steps) : null;
        if (job && job.state === "running") return job.total > 0 ? job.done / job.total : null;
        return null;
    }

    function timing(snapshot) {
        const { stage, run, job } = snapshot;
        const parts = [];
        if (stage) parts.push(`${seconds(stage.seconds)} so far`, `part ${stage.number} of ${stage.stages}`);
        if (!job && run && run.seconds_per_step !== null) {
            if (run.active) parts.push(`${seconds(run.seconds_per_step)} for the last step`);
            parts.push(`${seconds(run.average_seconds_per_step)} per step on average`, ...left(run));
        }
        return parts.join(", ");
    }

    // How long a generation will take from now on, after its first steps; [] where nobody can tell.
    function left({ active, step, steps, average_seconds_per_step: average }) {
        const rest = Math.ceil(average * (steps - step));
        return active && steps > step && average ? [`about ${rest < 60 ? `${rest} s` : seconds(rest)} left`] : [];
    }

    // What a window's title has room for: how much is done and how long it will take, the stage, or what runs.
    function brief(snapshot) {
        const { stage, run } = snapshot;
        if (stage || !run || !run.active || run.steps === 0) return snapshot.state === "idle" ? "" : headline(snapshot);
        return [`${Math.floor((100 * run.step) / run.steps)} %`, ...left(run)].join(", ");
    }

    const OTHER_LABELS = { preparing: "Preparing", other: "PyTorch and the rest" };

    // [{name, share, text}], largest network first, then preparing and the rest; shares of 0 % are left out. A job has none,
    // and those of the generation before it would be taken for its own.
    function shares(snapshot) {
        const shareByName = (!snapshot.job && snapshot.run && snapshot.run.shares) || {};
        const labels = (snapshot.run && snapshot.run.labels) || {};  // a network that is released since is not among the others
        const label = (name) => OTHER_LABELS[name] || titled(labels[name] || (snapshot.networks[name] && snapshot.networks[name].label) || name);
        const rank = (name) => Object.keys(OTHER_LABELS).indexOf(name);
        const sorted = Object.entries(shareByName).sort(([a, x], [b, y]) => rank(a) - rank(b) || y - x);
        const whole = percents(sorted.map(([, share]) => share));
        return sorted
            .map(([name, share], i) => ({ name, share, percent: whole[i], text: `${label(name)} ${whole[i]} %` }))
            .filter(({ percent }) => percent > 0)
            .map(({ name, share, text }) => ({ name, share, text }));
    }

    // What was compared: the names in the result, and how the user knows them.
    const sides = (result) => Object.entries(result.sides ?? { pytorch: "PyTorch", openvino: "OpenVINO" });

    function verdict(result) {
        const [[first, reference], [second, label]] = sides(result);
        const [before, after] = [first, second].map((name) => result[`${name}_picture_seconds`] ?? result[`${name}_seconds`]);
        if (Math.max(before, after) < 1.05 * Math.min(before, after)) return `${label} and ${reference} are about equally fast here`;
        const what = result.pictures ? "The picture" : "One step";
        if (after < before) return `${what}: ${label} ${(before / after).toFixed(2)} times as fast`;
        return `${what}: ${reference} ${(after / before).toFixed(2)} times as fast. Leave ${label} off here`;
    }

    const ofBoth = (result, what) => sides(result).map(([name, label]) => `${label} ${seconds(result[`${name}_${what}`])}`).join(", ");

    // Whether two pictures that were compared are so unlike that the faster one is no success.
    const LEAST_LIKENESS_DB = 30;
    const isUnlike = (result) => Boolean(result.pictures) && result.psnr_db !== null && result.psnr_db < LEAST_LIKENESS_DB;

    function comparison(result) {
        const step = `One step of ${result.size}: ${ofBoth(result, "seconds")}.`;
        if (!result.pictures) return step;
        const differ = isUnlike(result) ? ": the pictures differ visibly" : "";
        const likeness = result.psnr_db === null ? "Both pictures are equal." : `PSNR ${result.psnr_db.toFixed(1)} dB${differ}.`;
        return `The picture: ${ofBoth(result, "picture_seconds")}. ${likeness} ${step}`;
    }

    // The details of a job that is done; its headline says that it is.
    function jobResult(job) {
        return job && job.state === "done" && job.kind === "compare" ? comparison(job.result) : "";
    }

    // Reasons of the last generation, and of jobs after it: those of earlier ones may be no longer true.
    const fallbacksOf = (network) => Object.entries(network.run_fallbacks ?? network.fallbacks ?? {});
    const correctionsOf = (network) => Object.entries(network.run_corrections ?? network.corrections ?? {});

    function coverage(snapshot) {
        const lines = [];
        for (const network of Object.values(snapshot.networks)) {
            const operators = Object.entries(network.in_pytorch || {});
            if ((network.run_calls ?? network.calls) === 0) continue; // it says nothing about the last generation
            if (operators.length > 0) {
                lines.push(`${titled(network.label)}: in PyTorch ${operators.map(([name, count]) => `${name} (${count})`).join(", ")}`);
            } else if (fallbacksOf(network).length === 0) {
                lines.push(`${titled(network.label)}: 100 % in OpenVINO`);
            }
        }
        return lines;
    }

    // A reason as a sentence: with one full stop.
    const ended = (reason) => `${reason.replace(/\.+$/, "")}.`;

    function fallbacks(snapshot) {
        const times = (count) => `${count} ${count === 1 ? "time" : "times"}`;
        return Object.values(snapshot.networks).flatMap((network) => [
            ...fallbacksOf(network).map(([reason, count]) => `${titled(network.label)} ran in PyTorch ${times(count)}: ${ended(reason)}`),
            ...correctionsOf(network).map(([reason, count]) => `${titled(network.label)}, ${times(count)}: ${ended(reason)}`),
            ...["text", "memory", "measured"].filter((name) => network.int8?.[name]).map((name) => `${titled(network.label)}: ${network.int8[name]}`),
        ]);
    }

    // What the user should know of this generation; a message whose reason stands in a line with its count is not said again.
    function notes(snapshot) {
        const reasons = Object.values(snapshot.networks).flatMap(fallbacksOf).map(([reason]) => ` in PyTorch: ${ended(reason)}`);
        return [...fallbacks(snapshot), ...snapshot.messages.filter((message) => !reasons.some((reason) => message.endsWith(reason)))];
    }

    // How many compiled networks are in memory, and their bytes; how many bytes of weights were given back, or why none were.
    function compiledSummary(snapshot) {
        const count = snapshot.compiled.length;
        const text = `${count} compiled ${count === 1 ? "network" : "networks"}`;
        if (!snapshot.engine) return text;
        const { bytes: held, budget_bytes: most, low_memory: low } = snapshot.engine;
        const given = low && low.offloaded_bytes ? `. ${bytes(low.offloaded_bytes)} of weights lie on the disk` : "";
        const reason = low && low.reason ? `. ${low.reason}` : "";
        return `${text}, ${bytes(held)} of at most ${bytes(most)}${given}${reason}`;
    }

    // The cells of a compiled network's row, in the order of COLUMNS in ov_backend/ui/status_html.py.
    function cells(row) {
        const { label, variant, size, device, precision } = row;
        return [titled(variant ? `${label}, ${variant}` : label), size, String(row.batch), device, precision, bytes(row.bytes), seconds(row.compile_seconds), String(row.calls), String(row.hits)];
    }

    function cacheSummary(info) {
        if (!info.kept) return "Nothing is kept on disk.";
        const graphs = info.entries === 1 ? "1 prepared graph" : `${info.entries} prepared graphs`;
        return `${graphs} on disk, ${bytes(info.bytes)} of at most ${bytes(info.max_bytes)}`;
    }

    // "512x512, 768 x 512" -> {sizes: [[512, 512], [768, 512]]} or {error: sentence}.
    function parseSizes(text) {
        const words = text.split(/[,;\n]+/).map((word) => word.trim()).filter(Boolean);
        const sizes = [];
        for (const word of words) {
            const match = /^(\d{1,5})\s*[x×*]\s*(\d{1,5})$/i.exec(word);
            if (!match) return { error: `"${word}" is no size; write width x height, for example 512x768.` };
            sizes.push([Number(match[1]), Number(match[2])]);
        }
        return sizes.length > 0 ? { sizes } : { error: "Write the sizes to prepare, for example 512x512, 512x768." };
    }

    // Whether pictures of this size, as many at once, can be generated; the bounds are those of ov_backend/pipelines/sizes.py.
    function isSize(width, height, batch) {
        const fits = (side) => Number.isInteger(side) && side % 8 === 0 && side >= 64 && side <= 4096;
        return fits(width) && fits(height) && Number.isInteger(batch) && batch >= 1 && batch <= 16 && width * height * batch <= 4096 * 4096;
    }

    // The row of a job file (docs/batch.md) for the texts of a page's fields; several batches are a list of seeds.
    function jobRow(fields) {
        const given = (name) => (fields[name] ?? "").trim() !== "";
        const row = {};
        for (const name of ["prompt", "negative_prompt", "sampler_name", "scheduler"]) if (given(name)) row[name] = fields[name];
        for (const name of ["steps", "width", "height", "cfg_scale", "batch_size", "seed"]) if (given(name)) row[name] = Number(fields[name]);
        if (given("checkpoint")) row.checkpoint = fields.checkpoint.replace(/\s*\[[0-9a-f]+\]$/, "");
        if (["f32", "bf16", "f16"].includes(fields.precision)) row.precision = fields.precision;
        if (fields.from_picture) Object.assign(row, { init_image: "start.png", denoising_strength: Number(fields.denoising_strength) });
        const { seed = -1, batch_size: size = 1 } = row;
        const count = Number(fields.batch_count || 1);
        if (count > 1) row.seed = Array.from({ length: count }, (_, i) => (seed < 0 ? -1 : seed + i * size));
        return row;
    }

    globalThis.OpenVINOText = {
        brief, bytes, cacheSummary, cells, compiledSummary, coverage, fallbacks, headline, jobResult, jobRow, isSize, notes, onPage, outcome, parseSizes, progress, seconds, shares, sides, spoken, timing,
    };
})();
