"""From a request to pictures, in the WebUI's order of calls."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import k_diffusion.sampling
import networks
import numpy as np
import torch
from PIL import Image

from modules import script_callbacks, scripts, sd_hijack, sd_models, sd_samplers_common, shared

LATENT_SCALE = 2  # of the tiny VAE


class StableDiffusionProcessing:
    """One request, with the defaults of the WebUI's API."""

    cached_c: list[Any] = [None, None]
    cached_uc: list[Any] = [None, None]

    def __init__(self, **fields: Any) -> None:
        self.prompt, self.negative_prompt, self.seed, self.steps, self.cfg_scale = "", "", 1, 3, 7.0
        self.width, self.height, self.batch_size, self.n_iter, self.sampler_name = 32, 32, 1, 1, "Euler a"
        self.init_images: list[Any] | None = None
        self.denoising_strength, self.enable_hr, self.hr_scale, self.hr_checkpoint_name = 0.6, False, 1.5, None
        self.refiner_checkpoint, self.refiner_switch_at, self.tiling, self.mask = None, 0.5, False, None
        self.override_settings: dict[str, Any] = {}
        self.extra_generation_params: dict[str, Any] = {}
        self.comments: dict[str, int] = {}
        self.scripts: Any = None
        self.script_args: Any = ()
        unknown = [name for name in fields if not hasattr(self, name)]
        assert not unknown, unknown
        self.__dict__.update(fields)
        self.cached_c, self.cached_uc = StableDiffusionProcessing.cached_c, StableDiffusionProcessing.cached_uc

    @property
    def sd_model(self) -> Any:
        return shared.sd_model

    def hook(self, name: str, *args: Any, **kwargs: Any) -> None:
        if self.scripts is not None:
            self.scripts.hook(name, self, *args, **kwargs)

    def setup_conds(self, prompt: str) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cached(self.cached_c, prompt), self._cached(self.cached_uc, self.negative_prompt)

    def _cached(self, cache: list[Any], text: str) -> Any:
        tags = tuple((x.name, x.te_multiplier) for x in networks.loaded_networks)
        key = text, shared.opts.CLIP_stop_at_last_layers, shared.sd_model.sd_checkpoint_info, tags
        if cache[0] != key:
            cache[:] = [key, shared.sd_model.get_learned_conditioning(text)]
        return cache[1]


class StableDiffusionProcessingTxt2Img(StableDiffusionProcessing):
    """txt2img; here the base class does both."""


class Processed:
    """The result of a generation."""

    def __init__(self, p: StableDiffusionProcessing, images: list[Any], infotexts: list[str]) -> None:
        self.images, self.infotexts, self.comments = images, infotexts, "".join(f"{comment}\n" for comment in p.comments)
        self.extra_generation_params = p.extra_generation_params


class CFGDenoiser(torch.nn.Module):
    """Guidance: cond and uncond in one batch if they have the same length, else in two calls; sometimes without uncond."""

    def __init__(self, p: StableDiffusionProcessing, cond: torch.Tensor, uncond: torch.Tensor, steps: int, mask: Any) -> None:
        super().__init__()
        self.p, self.cond, self.uncond, self.steps, self.step, self.mask = p, cond, uncond, steps, 0, mask

    def forward(self, x: torch.Tensor, sigma: torch.Tensor, **extra: Any) -> torch.Tensor:
        if shared.state.interrupted or shared.state.skipped:
            raise sd_samplers_common.InterruptedException
        self._switch_to_refiner()
        script_callbacks.call("cfg_denoiser", script_callbacks.StepParams(x, self.step, self.steps))
        skip = sigma[0] < shared.opts.s_min_uncond and self.step % 2
        skip = skip or (shared.opts.skip_early_cond > 0 and self.step / self.steps <= shared.opts.skip_early_cond)
        cond, uncond = (t.expand(x.shape[0], -1, -1) for t in (self.cond, self.uncond))
        if skip or self.p.cfg_scale == 1:
            denoised = self._denoised(x, sigma, cond)
        elif cond.shape[1] == uncond.shape[1] and shared.opts.batch_cond_uncond:
            both = self._denoised(torch.cat([x, x]), torch.cat([sigma, sigma]), torch.cat([cond, uncond]))
            a, b = both.chunk(2)
            denoised = b + (a - b) * self.p.cfg_scale
        else:
            a, b = self._denoised(x, sigma, cond), self._denoised(x, sigma, uncond)
            denoised = b + (a - b) * self.p.cfg_scale
        self.step += 1
        shared.state.sampling_step, shared.state.sampling_steps = self.step, self.steps
        script_callbacks.call("cfg_after_cfg", script_callbacks.StepParams(denoised, self.step, self.steps))
        return denoised

    def _denoised(self, x: torch.Tensor, sigma: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """epsilon prediction: x - sigma * model(x / sqrt(sigma^2 + 1), t(sigma))."""
        scale = sigma.view(-1, 1, 1, 1)
        scaled = x / (scale**2 + 1).sqrt()
        if self.p.sd_model.sd_checkpoint_info.in_channels == 9:
            scaled = torch.cat([scaled, torch.zeros(x.shape[0], 5, *x.shape[2:])], dim=1)
        t = 1000 * sigma / (sigma + 1)
        noise = self.p.sd_model.model.diffusion_model(scaled, t, context=context)
        noise = (x / (scale**2 + 1).sqrt() + 0.5 * noise) / (1 + scale**2).sqrt() * scale.clamp(max=1)
        denoised = x - scale * noise
        return denoised if self.mask is None else self.mask * denoised + (1 - self.mask) * x

    def _switch_to_refiner(self) -> None:
        name = self.p.refiner_checkpoint
        if name and self.step / self.steps >= self.p.refiner_switch_at and shared.sd_model.sd_checkpoint_info.name != name:
            sd_models.reload_model_weights(name)
            self.cond, self.uncond = self.p.setup_conds(_without_tags(self.p.prompt))


def process_images(p: StableDiffusionProcessing) -> Processed:
    p.hook("before_process")
    before = {name: getattr(shared.opts, name, None) for name in p.override_settings}
    try:
        for name, value in p.override_settings.items():
            setattr(shared.opts, name, value)
        sd_models.reload_model_weights(shared.opts.sd_model_checkpoint)
        return process_images_inner(p)
    finally:
        for name, value in before.items():
            setattr(shared.opts, name, value)


def process_images_inner(p: StableDiffusionProcessing) -> Processed:
    sd_hijack.apply_circular(p.sd_model, p.tiling)
    p.hook("process")
    images, infotexts = [], []
    with torch.no_grad():
        initial = _initial(p)
        for n in range(p.n_iter):
            if shared.state.interrupted:
                break
            sd_models.reload_model_weights(shared.opts.sd_model_checkpoint)  # a refiner may be in use
            networks.load_networks([(name, float(s)) for name, s in re.findall(r"<lora:(\w+):([\d.]+)>", p.prompt)])
            p.prompts, p.negative_prompts = [_without_tags(p.prompt)], [p.negative_prompt]
            p.hook("process_batch", batch_number=n)
            samples = _sample(p, initial, n)
            for sample in samples:  # one at a time, as the WebUI does
                decoded = p.sd_model.first_stage_model.decode(sample[None])[0]
                picture = (decoded * 0.25 + 0.5).clamp(0, 1).permute(1, 2, 0).numpy() * 255
                images.append(Image.fromarray(picture.astype(np.uint8)))
                infotexts.append(create_infotext(p))
    processed = Processed(p, images, infotexts)
    p.hook("postprocess", processed)
    return processed


def _initial(p: StableDiffusionProcessing) -> torch.Tensor | None:
    if p.init_images is None:
        return None
    arrays = [np.array(image).astype(np.float32) / 127.5 - 1 for image in p.init_images]
    return torch.cat([p.sd_model.first_stage_model.encode(torch.tensor(a).permute(2, 0, 1)[None]) for a in arrays])


def _sample(p: StableDiffusionProcessing, initial: torch.Tensor | None, n: int) -> torch.Tensor:
    cond, uncond = p.setup_conds(_without_tags(p.prompt))
    height, width = p.height // LATENT_SCALE, p.width // LATENT_SCALE
    seeds = [p.seed + n * p.batch_size + i for i in range(p.batch_size)]
    noise = torch.cat([torch.randn(1, 4, height, width, generator=torch.Generator().manual_seed(seed)) for seed in seeds])
    p.hook("process_before_every_sampling")
    if initial is not None:
        return _run(p, initial, noise, cond, uncond, p.denoising_strength)
    samples = _run(p, None, noise, cond, uncond, 1.0)
    if p.enable_hr:
        if p.hr_checkpoint_name:
            sd_models.reload_model_weights(p.hr_checkpoint_name)
            cond, uncond = p.setup_conds(_without_tags(p.prompt))
        size = [int(side * p.hr_scale) // 8 * 8 for side in (height, width)]
        samples = torch.nn.functional.interpolate(samples, size, mode="bilinear")
        noise = torch.nn.functional.interpolate(noise, size, mode="nearest")
        p.hook("process_before_every_sampling")
        samples = _run(p, samples, noise, cond, uncond, p.denoising_strength)
    return samples


def _run(p: StableDiffusionProcessing, initial: Any, noise: Any, cond: Any, uncond: Any, strength: float) -> torch.Tensor:
    sigmas = k_diffusion.sampling.get_sigmas_karras(p.steps, 0.1, 10.0)
    if initial is not None:
        sigmas = sigmas[-int(min(strength, 0.999) * p.steps) - 2 :]
    x = noise * sigmas[0] + (0 if initial is None else initial)
    mask = None
    if p.mask is not None:
        mask = torch.tensor(np.array(p.mask.resize((x.shape[3], x.shape[2])).convert("L"))).float() / 255
    denoiser = CFGDenoiser(p, cond, uncond, len(sigmas) - 1, mask)
    sampler = getattr(k_diffusion.sampling, SAMPLERS[p.sampler_name])
    last = x
    torch.manual_seed(p.seed)

    def keep(state: dict[str, Any]) -> None:
        nonlocal last
        last = state["x"]

    with contextlib.suppress(sd_samplers_common.InterruptedException):
        last = sampler(denoiser, x, sigmas, callback=keep, disable=True)
    return last


SAMPLERS = {
    "Euler a": "sample_euler_ancestral",
    "Euler": "sample_euler",
    "Heun": "sample_heun",
    "LMS": "sample_lms",
    "DPM2": "sample_dpm_2",
    "DPM++ 2M": "sample_dpmpp_2m",
    "DPM++ 2S a": "sample_dpmpp_2s_ancestral",
}


def _without_tags(prompt: str) -> str:
    return re.sub(r"<[^>]*>", "", prompt)


def create_infotext(p: StableDiffusionProcessing) -> str:
    values = {"Steps": p.steps, "Sampler": p.sampler_name, "Seed": p.seed, **p.extra_generation_params}
    shown = {name: value(p=p, index=0) if callable(value) else value for name, value in values.items()}
    return f"{p.prompt}\n" + ", ".join(f"{name}: {_quote(str(value))}" for name, value in shown.items() if value is not None)


def _quote(text: str) -> str:
    return f'"{text}"' if "," in text or ":" in text else text


def generate(script: str | None = None, script_args: list[Any] | None = None, **fields: Any) -> Processed:
    """Generate as /sdapi/v1/txt2img and img2img do; img2img where there are ``init_images``."""
    runner = scripts.scripts_img2img if fields.get("init_images") else scripts.scripts_txt2img
    selected = next((each for each in runner.selectable_scripts if each.title() == script), None)
    p = StableDiffusionProcessing(scripts=runner, **fields)
    p.script_args = runner.api_arguments(selected, script_args)
    shared.state.begin()
    return runner.run(p, *p.script_args) or process_images(p)
