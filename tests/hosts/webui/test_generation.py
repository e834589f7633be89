"""The script in the stand-in WebUI: pictures with it and without it agree, and it leaves nothing behind."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image, ImageDraw

from ov_backend.ui.choices import Choices
from tests.helpers.extent import some
from tests.hosts.webui.conftest import (
    ALL,
    ROOT,
    TITLE,
    arguments,
    before_every_step,
    engine_stats,
    largest_difference,
    ran,
    ran_text,
    text_encoder_is_supported,
)


def test_the_script_is_in_both_tabs(host: SimpleNamespace) -> None:
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


@pytest.mark.parametrize("sampler", some(["Heun", "DPM++ 2M"], ["Euler", "Heun", "LMS", "DPM2", "DPM++ 2M", "DPM++ 2S a"]))
def test_samplers(sampler: str, compare: Any) -> None:
    compare(prompt="a cat", sampler_name=sampler)


def test_batches(compare: Any) -> None:
    compare(prompt="a cat", batch_size=2, n_iter=2)


def test_a_second_generation_captures_and_compiles_nothing(compare: Any) -> None:
    compare(prompt="a cat")
    before = {name: (stats["captures"], stats["compiles"]) for name, stats in engine_stats().items()}
    _, on = compare(prompt="a dog")
    assert {name: (stats["captures"], stats["compiles"]) for name, stats in engine_stats().items()} == before
    assert ran(on) == ran_text(*ALL)


def test_all_values_of_clip_skip_share_one_graph(compare: Any, host: SimpleNamespace) -> None:
    if not text_encoder_is_supported():
        pytest.skip("this transformers collects hidden states outside of the encoder")
    compare(prompt="a cat")
    held = engine_stats()["text_encoder"]["held"]
    for skip in (1, 2, 3):
        compare(prompt="a cat", override_settings={"CLIP_stop_at_last_layers": skip})
    assert engine_stats()["text_encoder"]["held"] == held


def test_textual_inversion(compare: Any) -> None:
    without, _ = compare(prompt="a cat")
    other, _ = compare(prompt="a cat glow")
    assert largest_difference(without, other) > 2


def test_a_checkpoint_may_replace_weights_or_the_whole_model(compare: Any) -> None:
    names = ("a", "b", "heads", "inpaint", "a")
    pictures = [compare(prompt="a cat", override_settings={"sd_model_checkpoint": name})[1] for name in names]
    assert largest_difference(pictures[0], pictures[1]) > 2
    assert largest_difference(pictures[0], pictures[4]) == 0


def test_an_unloaded_model_can_be_freed(compare: Any, host: SimpleNamespace) -> None:
    import gc
    import weakref

    compare(prompt="a cat")
    old = weakref.ref(host.shared.sd_model.model.diffusion_model)
    compare(prompt="a cat", override_settings={"sd_model_checkpoint": "heads"})
    gc.unfreeze()  # tests/conftest.py freezes what is there while modules are imported, this model too
    gc.collect()
    assert old() is None


def test_back_at_a_checkpoint_whose_model_was_freed_nothing_is_compiled(compare: Any) -> None:
    from ov_backend.hosts.webui.session import session

    for name in ("a", "heads"):
        compare(prompt="a cat", override_settings={"sd_model_checkpoint": name})
    assert session.engine is not None
    before = session.engine.compiles
    compare(prompt="a cat", override_settings={"sd_model_checkpoint": "a"})
    assert session.engine.compiles == before


def test_refiner(compare: Any) -> None:
    for other in ("b", "heads"):
        compare(prompt="a cat", steps=4, refiner_checkpoint=other)


def test_pytorch_finds_no_conditionings_of_openvino(host: SimpleNamespace) -> None:
    """What OpenVINO encoded in bf16 must not reach a later generation of PyTorch by the host's cache."""
    before = host.processing.generate(prompt="a cat on a mat")
    host.processing.StableDiffusionProcessing.cached_c[:] = [None, None]
    host.processing.generate(TITLE, arguments("auto"), prompt="a cat on a mat")
    assert largest_difference(before, host.processing.generate(prompt="a cat on a mat")) == 0


def test_a_prompt_that_pytorch_has_encoded_is_not_said_to_be_openvinos(host: SimpleNamespace) -> None:
    if not text_encoder_is_supported():
        pytest.skip("the text encoder of this transformers is never compiled")
    refused = [*arguments()[:-2], '{"NPU_TURBO": true}', "auto"]
    for _ in range(2):
        on = host.processing.generate(TITLE, refused, prompt="a cat that no one has encoded")
        assert "text encoder in PyTorch" in ran(on)
        assert "Text encoder in PyTorch: " in on.comments


def test_one_network_switched_off(host: SimpleNamespace) -> None:
    off = host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, arguments(unet=False), prompt="a cat")
    assert ran(on) == ran_text("VAE", "text encoder")
    assert largest_difference(off, on) <= 1


def test_the_field_does_not_name_a_network_that_no_call_reached(
    host: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with TAESD, and where another version of the WebUI calls another function of it."""
    monkeypatch.setitem(vars(host.shared.sd_model.first_stage_model), "decode", lambda z: z[:, :3].repeat(1, 1, 2, 2))
    on = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert ran(on) == ran_text("UNet", "text encoder")
    again = host.processing.generate(TITLE, arguments(), prompt="a cat")  # its prompt is kept
    assert ran(again) == ran_text("UNet", "text encoder")


def test_an_exception_leaves_nothing_patched(host: SimpleNamespace, compare: Any) -> None:
    def fail(params: Any) -> None:
        if params.sampling_step == 1:
            raise ValueError("planted")

    with before_every_step(fail), pytest.raises(ValueError, match="planted"):
        host.processing.generate(TITLE, arguments(), prompt="a cat")
    compare(prompt="a cat")


@pytest.mark.parametrize("how", ["interrupted", "skipped"])
def test_an_interrupted_generation_returns_its_picture(how: str, host: SimpleNamespace, compare: Any) -> None:
    def stop(params: Any) -> None:
        setattr(host.shared.state, how, params.sampling_step == 1)

    with before_every_step(stop):
        stopped = host.processing.generate(TITLE, arguments(), prompt="a cat", steps=6)
    assert len(stopped.images) == 1
    compare(prompt="a cat")


def test_an_interruption_while_compiling_ends_the_sampling(host: SimpleNamespace, compare: Any) -> None:
    def stop(params: Any) -> None:
        host.shared.state.interrupted = True

    compare(prompt="a cat")
    with before_every_step(stop):  # a new size: the first call of the UNet waits for its compile
        stopped = host.processing.generate(TITLE, arguments(), prompt="a cat", width=48)
    assert stopped.images[0].size == (48, 32)
    assert "UNet" not in ran(stopped), "OpenVINO has answered no call of it"
    compare(prompt="a cat", width=48)


@pytest.mark.parametrize("values", [["GPU.7"], ["NPU", "f32"]], ids=str)
def test_a_device_that_is_not_there_leaves_the_picture_to_pytorch(values: list[Any], host: SimpleNamespace) -> None:
    from ov_backend.hosts.webui.session import session

    off = host.processing.generate(prompt="a cat")
    on = host.processing.generate(TITLE, [*values, *arguments()[len(values) :]], prompt="a cat")
    assert largest_difference(off, on) == 0
    assert values[0] in on.comments
    assert "OpenVINO is not used" in on.comments
    assert ran(on) == "all in PyTorch"
    assert any(values[0] in message for message in session.status.snapshot()["messages"])
    host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert not any("OpenVINO is not used" in message for message in session.status.snapshot()["messages"])


def test_the_field_of_a_picture_restores_the_choices(host: SimpleNamespace) -> None:
    values = ["CPU", "f32", True, False, True, False, 512, '{"PERFORMANCE_HINT": "LATENCY"}', "off"]
    on = host.processing.generate(TITLE, values, prompt="a cat")
    field = on.extra_generation_params["OpenVINO"]
    assert list(vars(Choices.from_infotext(field)).values()) == values


def test_reloading_the_page_clears_everything_and_the_script_still_works(host: SimpleNamespace, compare: Any) -> None:
    from ov_backend.hosts.webui.session import session

    compare(prompt="a cat")
    host.scripts.initialize([ROOT])
    assert session.engine is None
    compare(prompt="a cat")


def test_reloading_the_page_compiles_nothing_again(
    host: SimpleNamespace, compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui.session import session

    extension = SimpleNamespace(name="openvino", path=str(ROOT))
    monkeypatch.setitem(sys.modules, "modules.extensions", SimpleNamespace(extensions=[extension]))
    _, before = compare(prompt="a cat")
    compiles = sum(stats["compiles"] for stats in engine_stats().values())
    host.scripts.initialize([ROOT])
    assert session.engine is not None
    _, after = compare(prompt="a cat")
    assert sum(stats["compiles"] for stats in engine_stats().values()) in (0, compiles)
    assert largest_difference(before, after) == 0
    host.shared.opts.disabled_extensions = ["openvino"]
    host.scripts.initialize([ROOT])
    assert session.engine is None


# ---- every generation


def test_always_on_accelerates_without_the_script(host: SimpleNamespace) -> None:
    off = host.processing.generate(prompt="a cat")
    host.shared.opts.openvino_always_on, host.shared.opts.openvino_precision = True, "f32"
    on = host.processing.generate(prompt="a cat")
    both = host.processing.generate(TITLE, arguments(), prompt="a cat")
    assert ran(on) == ran(both) == ran_text(*ALL)
    assert largest_difference(off, on) <= 1
    assert largest_difference(off, both) <= 1


def test_always_on_ends_with_a_generation_that_fails(host: SimpleNamespace) -> None:
    host.shared.opts.openvino_always_on = True
    with pytest.raises(KeyError):
        host.processing.generate(prompt="a cat", sampler_name="no such sampler")
    with pytest.raises(KeyError):
        host.processing.generate(prompt="a cat", override_settings={"sd_model_checkpoint": "none"})
    host.shared.opts.openvino_always_on = False
    assert ran(host.processing.generate(prompt="a cat")) == ""


def test_a_value_of_an_xyz_axis_accelerates_its_cell_alone(host: SimpleNamespace) -> None:
    """The value "PyTorch" of the device axis accelerates nothing."""
    from ov_backend.hosts.webui import settings_page

    plot = host.processing.StableDiffusionProcessing(prompt="a cat", scripts=host.scripts.scripts_txt2img)
    plot.script_args = plot.scripts.api_arguments(None, None)

    def cell(**values: str) -> Any:
        p = copy.copy(plot)  # as X/Y/Z plot does: the cells share its attributes
        for field, value in values.items():
            settings_page._apply(field)(p, value, [value])
        return host.processing.process_images(p)

    off = cell()
    on = cell(device="CPU", precision="f32")
    assert ran(on) == ran_text(*ALL)
    assert largest_difference(off, on) <= 1
    by_pytorch = cell(device="PyTorch", precision="f32")
    assert largest_difference(off, by_pytorch) == 0
    assert ran(by_pytorch) == ""


def test_the_environment_names_the_folder_of_stored_graphs(
    host: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ov_backend.hosts.webui.session import CACHE_DIR, Session

    monkeypatch.delenv("OPENVINO_TORCH_CACHE_DIR", raising=False)
    assert Session().cache_dir == str(CACHE_DIR)
    monkeypatch.setenv("OPENVINO_TORCH_CACHE_DIR", str(tmp_path))
    assert Session().cache_dir == str(tmp_path)
