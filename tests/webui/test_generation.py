"""The script in the stand-in host: pictures with it and without it agree, and nothing of it stays behind."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image, ImageDraw

from ov_backend.ui.choices import Choices
from tests.webui.conftest import ALL, TITLE, arguments, ran, words, worst

LONG = "red brick house in a green valley under a blue sky "


def statistics() -> dict[str, Any]:
    """Of the engine that the generations share."""
    from ov_backend.webui.session import session

    assert session.engine is not None
    return session.engine.stats()


def test_it_is_in_both_tabs(host: SimpleNamespace) -> None:
    assert TITLE in host.scripts.scripts_txt2img.titles
    assert TITLE in host.scripts.scripts_img2img.titles


def test_txt2img(compare: Any) -> None:
    compare(prompt="a cat on a chair", negative_prompt="blurry")


def test_img2img(compare: Any) -> None:
    first, _ = compare(prompt="a cat")
    compare(prompt="a dog", init_images=[first.images[0]])


def test_inpainting_mask(compare: Any, host: SimpleNamespace) -> None:
    first = host.processing.generate(prompt="a cat")
    mask = Image.new("L", (32, 32), 0)
    ImageDraw.Draw(mask).rectangle((8, 8, 24, 24), fill=255)
    compare(prompt="a dog", init_images=[first.images[0]], mask=mask)


@pytest.mark.parametrize("sampler", ["Euler", "Heun", "LMS", "DPM2", "DPM++ 2M", "DPM++ 2S a"])
def test_samplers(sampler: str, compare: Any) -> None:
    compare(prompt="a cat", sampler_name=sampler)


def test_batches(compare: Any) -> None:
    compare(prompt="a cat", batch_size=2, n_iter=2)


def test_a_second_generation_makes_nothing_again(compare: Any) -> None:
    compare(prompt="a cat")
    before = {name: (s["captures"], s["compiles"]) for name, s in statistics().items()}
    _, on = compare(prompt="a dog")
    assert {name: (s["captures"], s["compiles"]) for name, s in statistics().items()} == before
    assert ran(on) == words(*ALL)


def test_clip_skip_is_one_graph(compare: Any, host: SimpleNamespace) -> None:
    if words(*ALL) != ", ".join(ALL):
        pytest.skip("this transformers collects hidden states outside of the encoder")
    for skip in (1, 2, 3):
        compare(prompt="a cat", override_settings={"CLIP_stop_at_last_layers": skip})
    assert statistics()["text_encoder"]["held"] == 1


def test_textual_inversion(compare: Any) -> None:
    plain, _ = compare(prompt="a cat")
    other, _ = compare(prompt="a cat glow")
    assert worst(plain, other) > 2


def test_checkpoints_in_place_and_anew(compare: Any) -> None:
    names = ("a", "b", "heads", "inpaint", "a")
    pictures = [compare(prompt="a cat", override_settings={"sd_model_checkpoint": name})[1] for name in names]
    assert worst(pictures[0], pictures[1]) > 2
    assert worst(pictures[0], pictures[4]) == 0


def test_a_dropped_model_can_be_freed(compare: Any, host: SimpleNamespace) -> None:
    import gc
    import weakref

    compare(prompt="a cat")
    old = weakref.ref(host.shared.sd_model.model.diffusion_model)
    compare(prompt="a cat", override_settings={"sd_model_checkpoint": "heads"})
    gc.collect()
    assert old() is None


def test_refiner(compare: Any) -> None:
    for other in ("b", "heads"):
        compare(prompt="a cat", steps=4, refiner_checkpoint=other)


def test_conditionings_of_one_are_not_the_other_s(host: SimpleNamespace) -> None:
    """What OpenVINO encoded in bf16 must not reach a later generation of PyTorch by the host's cache."""
    before = host.processing.generate(prompt="a cat on a mat")
    host.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
    host.processing.generate(TITLE, arguments("auto"), prompt="a cat on a mat")
    assert worst(before, host.processing.generate(prompt="a cat on a mat")) == 0


def test_one_network_switched_off(host: SimpleNamespace) -> None:
    off = host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, arguments(unet=False), prompt="a cat")
    assert ran(on) == words("VAE", "text encoder")
    assert worst(off, on) <= 1


def test_an_exception_takes_everything_out(host: SimpleNamespace, compare: Any) -> None:
    from modules import script_callbacks

    def fail(params: Any) -> None:
        if params.sampling_step == 1:
            raise ValueError("planted")

    script_callbacks.on_cfg_denoiser(fail)
    try:
        with pytest.raises(ValueError, match="planted"):
            host.processing.generate(TITLE, arguments(), prompt="a cat")
    finally:
        script_callbacks.callbacks["cfg_denoiser"].remove(fail)
    compare(prompt="a cat")


@pytest.mark.parametrize("how", ["interrupted", "skipped"])
def test_interruption_keeps_what_there_is(how: str, host: SimpleNamespace, compare: Any) -> None:
    from modules import script_callbacks

    def stop(params: Any) -> None:
        setattr(host.shared.state, how, params.sampling_step == 1)

    script_callbacks.on_cfg_denoiser(stop)
    try:
        stopped = host.processing.generate(TITLE, arguments(), prompt="a cat", steps=6)
    finally:
        script_callbacks.callbacks["cfg_denoiser"].remove(stop)
    assert len(stopped.images) == 1
    compare(prompt="a cat")


def test_interruption_while_compiling_is_the_sampler_s(host: SimpleNamespace, compare: Any) -> None:
    from modules import script_callbacks

    def stop(params: Any) -> None:
        host.shared.state.interrupted = True

    compare(prompt="a cat")
    script_callbacks.on_cfg_denoiser(stop)
    try:  # a size never seen: the first call of the UNet would have to be prepared
        stopped = host.processing.generate(TITLE, arguments(), prompt="a cat", width=48)
    finally:
        script_callbacks.callbacks["cfg_denoiser"].remove(stop)
    assert stopped.images[0].size == (48, 32)
    compare(prompt="a cat", width=48)


@pytest.mark.parametrize("given", [["GPU.7"], ["NPU", "f32"]], ids=str)
def test_a_device_that_is_not_there(given: list[Any], host: SimpleNamespace) -> None:
    off = host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, [*given, *arguments()[len(given) :]], prompt="a cat")
    assert worst(off, on) == 0
    assert given[0] in on.comments
    assert "OpenVINO is not used" in on.comments


def test_the_field_reads_back(host: SimpleNamespace) -> None:
    given = ["CPU", "f32", True, False, True, False, 512, '{"PERFORMANCE_HINT": "LATENCY"}']
    on = host.processing.generate(TITLE, given, prompt="a cat")
    field = on.extra_generation_params["OpenVINO"]
    assert list(vars(Choices.from_infotext(field)).values()) == given


def test_reload_takes_everything_out_and_it_works_again(host: SimpleNamespace, compare: Any) -> None:
    from ov_backend.webui.session import session
    from tests.webui.conftest import ROOT

    compare(prompt="a cat")
    host.scripts.initialize([ROOT])
    assert session.engine is None
    compare(prompt="a cat")


# ---- every generation


def test_always_on(host: SimpleNamespace) -> None:
    off = host.processing.generate(prompt="a cat")
    host.shared.opts.openvino_always_on, host.shared.opts.openvino_precision = True, "f32"
    on = host.processing.generate(prompt="a cat")
    both = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert ran(on) == ran(both) == words(*ALL)
    assert worst(off, on) <= 1
    assert worst(off, both) <= 1


def test_always_on_after_a_failure(host: SimpleNamespace) -> None:
    host.shared.opts.openvino_always_on = True
    with pytest.raises(KeyError):
        host.processing.generate(prompt="a cat", sampler_name="no such sampler")
    with pytest.raises(KeyError):
        host.processing.generate(prompt="a cat", override_settings={"sd_model_checkpoint": "none"})
    host.shared.opts.openvino_always_on = False
    assert ran(host.processing.generate(prompt="a cat")) == ""


def test_axes_of_xyz_plot(host: SimpleNamespace) -> None:
    """An axis's value accelerates its cell alone; "PyTorch" is the column without."""
    from ov_backend.webui import settings_page

    plot = host.processing.StableDiffusionProcessing(prompt="a cat", scripts=host.scripts.scripts_txt2img)
    plot.script_args = plot.scripts.api_arguments(None, None)

    def cell(**values: str) -> Any:
        p = copy.copy(plot)  # as the plot does: what hangs on it is common to all cells
        for field, value in values.items():
            settings_page._apply(field)(p, value, [value])
        return host.processing.process_images(p)

    off = cell()
    on = cell(device="CPU", precision="f32")
    assert ran(on) == words(*ALL)
    assert worst(off, on) <= 1
    beside = cell(device="PyTorch", precision="f32")
    assert worst(off, beside) == 0
    assert ran(beside) == ""
